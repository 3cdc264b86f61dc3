"""Files: the CMF container and its codecs, Hugging Face folders, tokenizers and texts. Knows no device."""
