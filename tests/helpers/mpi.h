/* In place of MPI's header: tests/bootstrap/test_join.c has what symwin/mpi.h needs of it. */
