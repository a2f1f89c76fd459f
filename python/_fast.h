/* What the two files of the extension share: _fast.c makes calls, _fast_arguments.c tells what they
 * were given. */
#ifndef SYMWIN_PYTHON_FAST_H
#define SYMWIN_PYTHON_FAST_H

#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#include "symwin.h"

/* Of a communicator. */
struct facts {
    int nranks, rank, device;
    int emulated;
};

/* An array or a tensor. */
struct operand {
    void *ptr;
    uint64_t count;
    int type;
};

/* A name of Python's, and where its object is kept. */
struct fast_name {
    PyObject **place;
    const char *text;
};

int fast_intern(const struct fast_name *names, size_t count);

/* The object, which stays for good: calls of old classes may still use it. */
PyObject *fast_keep(PyObject *object);

/* Once: the names of what arguments are asked for. */
int fast_prepare_arguments(void);

/* Array, Buffer and Stream, the names of operations, the types of DLPack, and handle_of, as comm.py
 * passes them to install(). */
int fast_learn(PyObject *array, PyObject *buffer, PyObject *stream, PyObject *ops, PyObject *codes,
               PyObject *handles);

/* tensor_class(class, capsule): tensors of this class, and of no subclass, are taken by the table
 * of functions in the capsule. True if that is possible: the capsule may be anything. */
PyObject *fast_tensor_class(PyObject *module, PyObject *arguments);

/* 1: found. 0: not what is known here, or wrong: the slow path decides. -1: an exception. */
int fast_memory(PyObject *value, const struct facts *facts, struct operand *found);
int fast_operation(PyObject *value, int *op);
int fast_rank(PyObject *value, int *rank);
int fast_stream(PyObject *value, int device, struct CUstream_st **stream);

#endif
