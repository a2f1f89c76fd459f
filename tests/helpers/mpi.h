/* Stands for MPI's header, which symwin/mpi.h includes; tests/bootstrap/test_join.c declares what
 * it needs. */
