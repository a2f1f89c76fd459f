/* In place of MPI's header: tests/test_join.c has what symwin_mpi.h needs of it. */
