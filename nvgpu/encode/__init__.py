"""Dense matrices to binary low-rank: rank rule, initialisers, exact refits, whole-file compression."""
