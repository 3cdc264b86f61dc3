"""Dense matrices to binary low-rank: the rank rule, initialisers, exact refits, and whole-file compression."""
