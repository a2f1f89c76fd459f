/* The communicator's calls for CPython, without ctypes: symwin/_fast.abi3.so of the wheel.
 *
 * By the stable ABI, so one file serves CPython 3.9 and later. It takes what calls get as a rule,
 * which is arrays of symwin's and tensors of torch's with nothing unusual about them
 * (_fast_arguments.c). For all else it calls the function of comm.py whose place it has taken,
 * which makes the call by ctypes or says what is wrong. So no message is written here, and without
 * the extension all works as well.
 *
 * The interpreter's lock guards what is static in both files; free-threaded interpreters do not
 * load it. */
#include "_fast.h"

#include <structmember.h>

#include <string.h>

#ifndef METH_FASTCALL /* of the stable ABI since 3.10; in CPython the same since 3.7 */
#define METH_FASTCALL 0x0080
#endif

/* ---- a communicator's part in C ---- */

struct rank {
    PyObject_HEAD symwin_comm *handle; /* NULL: None */
    struct facts facts;
    int busy; /* a thread is in a call */
};

static PyObject *rank_handle(PyObject *self, void *closure)
{
    struct rank *rank = (struct rank *)self;

    (void)closure;
    if (rank->handle == NULL)
        Py_RETURN_NONE;
    return PyLong_FromVoidPtr(rank->handle);
}

static int rank_set_handle(PyObject *self, PyObject *value, void *closure)
{
    void *handle = NULL;

    (void)closure;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "_handle cannot be deleted");
        return -1;
    }
    if (value != Py_None) {
        handle = PyLong_AsVoidPtr(value);
        if (PyErr_Occurred())
            return -1;
    }
    ((struct rank *)self)->handle = handle;
    return 0;
}

static PyObject *rank_acquire(PyObject *self, PyObject *unused)
{
    struct rank *rank = (struct rank *)self;

    (void)unused;
    if (rank->busy)
        Py_RETURN_FALSE;
    rank->busy = 1;
    Py_RETURN_TRUE;
}

static PyObject *rank_release(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((struct rank *)self)->busy = 0;
    Py_RETURN_NONE;
}

static PyMemberDef rank_members[] = {
    {"nranks", T_INT, offsetof(struct rank, facts.nranks), 0, NULL},
    {"rank", T_INT, offsetof(struct rank, facts.rank), 0, NULL},
    {"device", T_INT, offsetof(struct rank, facts.device), 0, NULL},
    {"_emulated", T_INT, offsetof(struct rank, facts.emulated), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef rank_getset[] = {
    {"_handle", rank_handle, rank_set_handle, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef rank_methods[] = {
    {"_acquire", rank_acquire, METH_NOARGS, NULL},
    {"_release", rank_release, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rank_slots[] = {
    {Py_tp_members, rank_members},
    {Py_tp_getset, rank_getset},
    {Py_tp_methods, rank_methods},
    {0, NULL},
};

static PyType_Spec rank_spec = {
    "symwin._fast.Slots", sizeof(struct rank), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    rank_slots,
};

/* ---- what comm.py tells in install() ---- */

/* The calls: the array whose count and type the call has; what the other array is if it is not
 * given; whether that one has the parts of all ranks; the parameters in order. Calls with counts
 * for each rank stay with ctypes. */
#define CALLS(X)                                                                                   \
    X(allreduce, INPUT, SAME, 0, INPUT, OUTPUT, OP)                                                \
    X(allgather, INPUT, WRONG, 1, INPUT, OUTPUT)                                                   \
    X(reduce_scatter, OUTPUT, WRONG, 1, INPUT, OUTPUT, OP)                                         \
    X(alltoall, INPUT, WRONG, 0, INPUT, OUTPUT)                                                    \
    X(broadcast, OUTPUT, SAME, 0, INPUT, OUTPUT, ROOT)                                             \
    X(reduce, INPUT, SAME, 0, INPUT, OUTPUT, OP, ROOT)                                             \
    X(gather, INPUT, NONE, 1, INPUT, OUTPUT, ROOT)                                                 \
    X(scatter, OUTPUT, NONE, 1, INPUT, OUTPUT, ROOT)                                               \
    X(barrier, NO_ARRAY, NONE, 0, STREAM)                                                          \
    X(send, INPUT, NONE, 0, INPUT, PEER)                                                           \
    X(recv, OUTPUT, NONE, 0, OUTPUT, PEER)

/* STREAM is given by its name only, so it ends the list of those that may be positional. */
enum { STREAM, INPUT, OUTPUT, OP, ROOT, PEER, PARAMETERS, NO_ARRAY = STREAM };
enum { SAME, NONE, WRONG };

#define X(name, ...) CALL_##name,
enum { CALLS(X) CALL_COUNT };
#undef X

static struct {
#define X(name, ...) __typeof__(&symwin_##name##_with) name;
    CALLS(X)
#undef X
} library;

static const struct {
    const char *name;
    unsigned char first, without, parts, order[5];
} calls[CALL_COUNT] = {
#define X(name, first, without, parts, ...) {#name, first, without, parts, {__VA_ARGS__}},
    CALLS(X)
#undef X
};

static PyObject *slow[CALL_COUNT]; /* the functions of comm.py */
static PyObject *parameters[PARAMETERS];
static PyObject *check;

static _Thread_local int depth; /* of this thread's groups */

/* Puts the arguments at their parameters' places. 0: the slow path decides. */
static int place(int call, PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords,
                 PyObject **given)
{
    const unsigned char *order = calls[call].order;
    Py_ssize_t i, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    int p, taken = 1 << STREAM, last = 0;

    while (order[last] != STREAM)
        taken |= 1 << order[last++];
    if (positional > last)
        return 0;
    for (i = 0; i < positional; i++)
        given[order[i]] = arguments[i];
    for (i = 0; i < named; i++) {
        PyObject *keyword = PyTuple_GetItem(keywords, i);

        for (p = 0; p < PARAMETERS && parameters[p] != keyword; p++)
            ;
        if (p == PARAMETERS || !(taken & 1 << p) || given[p] != NULL)
            return 0;
        given[p] = arguments[positional + i];
    }
    for (p = 0; p < PARAMETERS; p++)
        if (given[p] == Py_None && p != OP && p != ROOT && p != PEER)
            given[p] = NULL;
    return 1;
}

/* ---- calls ---- */

struct call {
    struct operand in, out;
    uint64_t count;
    int type, op, root;
    struct CUstream_st *stream;
    PyObject *result;
};

/* What the functions of comm.py of the same names check. */
static int prepare(int call, const struct facts *facts, PyObject **given, struct call *made)
{
    int first = calls[call].first, known;
    PyObject *other = given[first == INPUT ? OUTPUT : INPUT];
    struct operand *at = first == INPUT ? &made->in : &made->out;
    struct operand *beside = first == INPUT ? &made->out : &made->in;
    uint64_t expected;

    if (first == NO_ARRAY)
        return 1;
    if (calls[call].without == SAME && given[OUTPUT] == NULL) {
        given[OUTPUT] = given[INPUT]; /* in place */
        other = NULL;
    }
    made->result = call == CALL_send ? NULL : given[OUTPUT];
    known = fast_memory(given[first], facts, at);
    if (known != 1)
        return known;
    if (other == NULL || other == given[first]) {
        if (other == NULL && calls[call].without == WRONG)
            return 0;
        if (other != NULL || calls[call].without == SAME)
            *beside = *at;
    } else {
        known = fast_memory(other, facts, beside);
        if (known != 1)
            return known;
    }
    expected = at->count;
    if (calls[call].parts && __builtin_mul_overflow(expected, (uint64_t)facts->nranks, &expected))
        return 0;
    if (other != NULL && (beside->count != expected || beside->type != at->type))
        return 0;
    made->count = at->count;
    made->type = at->type;
    if (call == CALL_alltoall) {
        if (made->count % (uint64_t)facts->nranks != 0)
            return 0;
        made->count /= (uint64_t)facts->nranks;
    }
    known = fast_operation(given[OP], &made->op);
    if (known == 1 && given[ROOT] != NULL)
        known = fast_rank(given[ROOT], &made->root);
    if (known == 1 && (call == CALL_send || call == CALL_recv))
        known = given[PEER] == NULL ? 0 : fast_rank(given[PEER], &made->root);
    return known;
}

static const symwin_collective_options plain = {.size = sizeof plain};

static symwin_status run(int call, symwin_comm *comm, const struct call *made)
{
    const void *in = made->in.ptr;
    void *out = made->out.ptr;
    symwin_type type = (symwin_type)made->type;
    symwin_op op = (symwin_op)made->op;

    switch (call) {
    case CALL_allreduce:
        return library.allreduce(comm, in, out, made->count, type, op, &plain, made->stream);
    case CALL_allgather:
        return library.allgather(comm, in, out, made->count, type, &plain, made->stream);
    case CALL_reduce_scatter:
        return library.reduce_scatter(comm, in, out, made->count, type, op, &plain, made->stream);
    case CALL_alltoall:
        return library.alltoall(comm, in, out, made->count, type, &plain, made->stream);
    case CALL_broadcast:
        return library.broadcast(comm, in, out, made->count, type, made->root, &plain,
                                 made->stream);
    case CALL_reduce:
        return library.reduce(comm, in, out, made->count, type, op, made->root, &plain,
                              made->stream);
    case CALL_gather:
        return library.gather(comm, in, out, made->count, type, made->root, &plain, made->stream);
    case CALL_scatter:
        return library.scatter(comm, in, out, made->count, type, made->root, &plain, made->stream);
    case CALL_send:
        return library.send(comm, in, made->count, type, made->root, &plain, made->stream);
    case CALL_recv:
        return library.recv(comm, out, made->count, type, made->root, &plain, made->stream);
    default:
        return library.barrier(comm, &plain, made->stream);
    }
}

/* stream: in the place of the one that was passed, whose own code has run; NULL: it has not. */
static PyObject *by_ctypes(int call, PyObject *self, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords, PyObject *stream)
{
    Py_ssize_t i, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    PyObject *positional = PyTuple_New(count + 1), *options = PyDict_New(), *result = NULL;

    if (positional == NULL || options == NULL)
        goto done;
    for (i = 0; i <= count; i++) {
        PyObject *value = i == 0 ? self : arguments[i - 1];

        Py_INCREF(value);
        PyTuple_SetItem(positional, i, value);
    }
    for (i = 0; i < named; i++)
        if (PyDict_SetItem(options, PyTuple_GetItem(keywords, i), arguments[count + i]) != 0)
            goto done;
    if (stream != NULL && PyDict_SetItem(options, parameters[STREAM], stream) != 0)
        goto done;
    result = PyObject_Call(slow[call], positional, options);
done:
    Py_XDECREF(positional);
    Py_XDECREF(options);
    return result;
}

static PyObject *raise_status(symwin_status status)
{
    PyObject *result = PyObject_CallFunction(check, "i", (int)status);

    if (result != NULL) {
        Py_DECREF(result);
        PyErr_SetString(PyExc_SystemError, "a failure without an exception");
    }
    return NULL;
}

static PyObject *enter(int call, PyObject *self, PyObject *const *arguments, Py_ssize_t count,
                       PyObject *keywords)
{
    struct rank *rank = (struct rank *)self;
    const struct facts facts = rank->facts; /* a stream's own code may change them */
    PyObject *given[PARAMETERS] = {NULL}, *stream, *result;
    struct call made;
    PyThreadState *state;
    symwin_status status;
    int known;

    memset(&made, 0, sizeof made);
    if (depth || facts.nranks < 1 || !place(call, arguments, count, keywords, given))
        return by_ctypes(call, self, arguments, count, keywords, NULL);
    known = fast_stream(given[STREAM], facts.device, &made.stream);
    if (known == 0)
        return by_ctypes(call, self, arguments, count, keywords, NULL);
    /* From here on to the call no code of the caller's runs. */
    if (known == 1)
        known = prepare(call, &facts, given, &made);
    if (known < 0)
        return NULL;
    if (known == 0 || depth || rank->busy || rank->handle == NULL) {
        stream = given[STREAM] == NULL ? NULL : PyLong_FromVoidPtr(made.stream);
        if (stream == NULL && PyErr_Occurred())
            return NULL;
        result = by_ctypes(call, self, arguments, count, keywords, stream);
        Py_XDECREF(stream);
        return result;
    }
    rank->busy = 1;
    state = PyEval_SaveThread();
    status = run(call, rank->handle, &made);
    PyEval_RestoreThread(state);
    rank->busy = 0;
    if (status != SYMWIN_OK)
        return raise_status(status);
    if (made.result == NULL)
        Py_RETURN_NONE;
    Py_INCREF(made.result);
    return made.result;
}

#define X(name, ...)                                                                               \
    static PyObject *call_##name(PyObject *self, PyObject *const *arguments, Py_ssize_t count,     \
                                 PyObject *keywords)                                               \
    {                                                                                              \
        return enter(CALL_##name, self, arguments, count, keywords);                               \
    }
CALLS(X)
#undef X

static PyMethodDef methods[CALL_COUNT] = {
#define X(name, ...)                                                                               \
    {#name, (PyCFunction)(void (*)(void))call_##name, METH_FASTCALL | METH_KEYWORDS, NULL},
    CALLS(X)
#undef X
};

/* ---- the module ---- */

static int install_call(PyObject *class, int i, PyObject *row)
{
    static void **const places[] = {
#define X(name, ...) (void **)&library.name,
        CALLS(X)
#undef X
    };
    PyObject *address, *function, *text, *method;
    void *found;
    int failed;

    if (!PyArg_ParseTuple(row, "OOU", &address, &function, &text))
        return -1;
    found = PyLong_AsVoidPtr(address);
    if (found == NULL)
        return -1;
    text = PyUnicode_AsUTF8String(text); /* for good */
    if (text == NULL)
        return -1;
    methods[i].ml_doc = PyBytes_AsString(text);
    *places[i] = found;
    slow[i] = fast_keep(function);
    method = PyDescr_NewMethod((PyTypeObject *)class, &methods[i]);
    if (method == NULL)
        return -1;
    failed = PyObject_SetAttrString(class, calls[i].name, method);
    Py_DECREF(method);
    return failed;
}

/* install(Communicator, Array, Buffer, Stream, {call: (address, function, doc)}, names of
 * operations, types of DLPack, check, handle_of): puts the calls into the class Communicator. */
static PyObject *install(PyObject *module, PyObject *arguments)
{
    PyObject *class, *array, *buffer, *stream, *table, *ops, *codes, *raises, *handles;
    PyObject *rows[CALL_COUNT];
    Py_ssize_t i;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOOO!O!O!OO", &PyType_Type, &class, &array, &buffer,
                          &stream, &PyDict_Type, &table, &PyDict_Type, &ops, &PyList_Type, &codes,
                          &raises, &handles))
        return NULL;
    for (i = 0; i < CALL_COUNT; i++) {
        rows[i] = PyDict_GetItemString(table, calls[i].name);
        if (rows[i] == NULL)
            return PyErr_Format(PyExc_KeyError, "%s", calls[i].name);
    }
    check = fast_keep(raises);
    if (fast_learn(array, buffer, stream, ops, codes, handles) != 0)
        return NULL;
    for (i = 0; i < CALL_COUNT; i++)
        if (install_call(class, (int)i, rows[i]) != 0)
            return NULL;
    Py_RETURN_NONE;
}

static PyObject *groups(PyObject *module, PyObject *open)
{
    long found = PyLong_AsLong(open);

    (void)module;
    if (found == -1 && PyErr_Occurred())
        return NULL;
    depth = found != 0;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"install", install, METH_VARARGS, NULL},
    {"groups", groups, METH_O, NULL},
    {"tensor_class", fast_tensor_class, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int prepare_names(void)
{
    static const struct fast_name names[] = {
        {&parameters[STREAM], "stream"}, {&parameters[INPUT], "input"},
        {&parameters[OUTPUT], "output"}, {&parameters[OP], "op"},
        {&parameters[ROOT], "root"},     {&parameters[PEER], "peer"},
    };

    return fast_intern(names, sizeof names / sizeof names[0]);
}

static int execute(PyObject *module)
{
    static int executed;
    PyObject *type;

    if (executed) { /* another interpreter of this process has it, and what is static here */
        PyErr_SetString(PyExc_ImportError, "symwin._fast is loaded once in a process");
        return -1;
    }
    executed = 1;
    if (prepare_names() != 0 || fast_prepare_arguments() != 0)
        return -1;
    type = PyType_FromSpec(&rank_spec);
    if (type == NULL)
        return -1;
    return PyModule_AddObject(module, "Slots", type);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)(uintptr_t)execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fast", NULL, 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fast(void)
{
    return PyModuleDef_Init(&definition);
}
