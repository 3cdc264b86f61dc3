"""The storage types of tensors, one file a family: sizes, shapes, encoders, and decoders that read single rows."""
