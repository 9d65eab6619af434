// Stands for the header of that name, with which OpSparse compares itself: it needs no cuSPARSE without.
