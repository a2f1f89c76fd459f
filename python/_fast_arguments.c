/* What a call was given: arrays of symwin's and tensors of torch's, operations, ranks, streams. */
#include "_fast.h"

#include <string.h>

/* ---- what is known ---- */

static PyObject *array_class, *buffer_class, *stream_class, *op_names, *handle_of;

static struct {
    PyObject *buffer, *offset, *count, *type, *device, *address, *handle, *device_index;
    PyObject *is_neg, *storage_offset, *untyped_storage, *nbytes;
} name;

PyObject *fast_keep(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

int fast_intern(const struct fast_name *names, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++) {
        *names[i].place = PyUnicode_InternFromString(names[i].text);
        if (*names[i].place == NULL)
            return -1;
    }
    return 0;
}

int fast_prepare_arguments(void)
{
    static const struct fast_name names[] = {
        {&name.buffer, "buffer"},
        {&name.offset, "offset"},
        {&name.count, "count"},
        {&name.type, "type"},
        {&name.device, "device"},
        {&name.address, "_address"},
        {&name.handle, "_handle"},
        {&name.device_index, "device_index"},
        {&name.is_neg, "is_neg"},
        {&name.storage_offset, "storage_offset"},
        {&name.untyped_storage, "untyped_storage"},
        {&name.nbytes, "nbytes"},
    };

    return fast_intern(names, sizeof names / sizeof names[0]);
}

static struct { /* of DLPack, and symwin's */
    uint8_t code, bits;
    int type;
} types[32];
static int type_count;

int fast_learn(PyObject *array, PyObject *buffer, PyObject *stream, PyObject *ops, PyObject *codes,
               PyObject *handles)
{
    array_class = fast_keep(array);
    buffer_class = fast_keep(buffer);
    stream_class = fast_keep(stream);
    op_names = fast_keep(ops);
    handle_of = fast_keep(handles);
    for (type_count = 0; type_count < PyList_Size(codes) && type_count < 32; type_count++)
        if (!PyArg_ParseTuple(PyList_GetItem(codes, type_count), "bbi", &types[type_count].code,
                              &types[type_count].bits, &types[type_count].type))
            return -1;
    return 0;
}

/* ---- arrays ---- */

static int number(PyObject *from, PyObject *attribute, unsigned long long *value)
{
    PyObject *found = PyObject_GetAttr(from, attribute);
    int known;

    if (found == NULL)
        return PyErr_ExceptionMatches(PyExc_Exception) ? (PyErr_Clear(), 0) : -1;
    known = PyLong_CheckExact(found);
    if (known) {
        *value = PyLong_AsUnsignedLongLong(found);
        if (*value == (unsigned long long)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            known = 0;
        }
    }
    Py_DECREF(found);
    return known;
}

static int array_operand(PyObject *value, int device, struct operand *found)
{
    unsigned long long where, address, offset, count, type;
    PyObject *buffer;
    int known;

    buffer = PyObject_GetAttr(value, name.buffer);
    if (buffer == NULL) {
        PyErr_Clear();
        return 0;
    }
    known = (PyObject *)Py_TYPE(buffer) == buffer_class;
    if (known == 1) /* None if it was freed */
        known = number(buffer, name.address, &address);
    Py_DECREF(buffer);
    if (known == 1)
        known = number(value, name.device, &where);
    if (known == 1)
        known = number(value, name.offset, &offset);
    if (known == 1)
        known = number(value, name.count, &count);
    if (known == 1)
        known = number(value, name.type, &type);
    if (known != 1)
        return known;
    if (where != (unsigned long long)device || type > 255)
        return 0;
    found->ptr = (void *)(uintptr_t)(address + offset);
    found->count = count;
    found->type = (int)type;
    return 1;
}

/* ---- tensors ---- */

/* DLPack's table of functions of a class (version 1): https://dmlc.github.io/dlpack/ */

struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct dl_exchange {
    struct {
        uint32_t major, minor;
    } version;
    void *previous;
    void *allocate, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(void *object, struct dl_tensor *out);
    int (*current_stream)(int32_t device_type, int32_t device, void **out);
};

enum { DL_CPU = 1, DL_CUDA = 2 };
#define DL_CAPSULE "dlpack_exchange_api"

/* torch.Tensor and torch.nn.Parameter, once they have been seen. */
static struct {
    PyObject *class;
    const struct dl_exchange *exchange;
} tensors[4];
static int tensor_classes;

PyObject *fast_tensor_class(PyObject *module, PyObject *arguments)
{
    PyObject *class, *capsule;
    const struct dl_exchange *exchange;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &class, &capsule))
        return NULL;
    if (!PyCapsule_IsValid(capsule, DL_CAPSULE))
        Py_RETURN_FALSE;
    exchange = PyCapsule_GetPointer(capsule, DL_CAPSULE);
    if (exchange->version.major != 1 || exchange->tensor_from_object == NULL ||
        tensor_classes == (int)(sizeof tensors / sizeof tensors[0]))
        Py_RETURN_FALSE;
    tensors[tensor_classes].class = fast_keep(class);
    tensors[tensor_classes].exchange = exchange;
    tensor_classes++;
    fast_keep(capsule);
    Py_RETURN_TRUE;
}

/* What a method that takes no arguments returns, as a number. */
static int answer(PyObject *of, PyObject *method, unsigned long long *value)
{
    PyObject *found = PyObject_CallMethodObjArgs(of, method, NULL);

    if (found == NULL)
        return -1;
    *value = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    if (*value == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* Whether a tensor's elements are what its memory has, and its storage, which may have been
 * resized, has all of them. */
static int is_plain(PyObject *value, uint64_t count, unsigned size)
{
    unsigned long long negated, offset, end, bytes;
    PyObject *storage;
    int known = answer(value, name.is_neg, &negated);

    if (known == 1)
        known = negated ? 0 : answer(value, name.storage_offset, &offset);
    if (known != 1)
        return known;
    if (__builtin_add_overflow(offset, count, &end) || __builtin_mul_overflow(end, size, &end))
        return 0;
    storage = PyObject_CallMethodObjArgs(value, name.untyped_storage, NULL);
    if (storage == NULL)
        return -1;
    known = answer(storage, name.nbytes, &bytes);
    Py_DECREF(storage);
    return known == 1 ? bytes >= end : known;
}

static int tensor_operand(PyObject *value, const struct dl_exchange *exchange,
                          const struct facts *facts, struct operand *found)
{
    struct dl_tensor tensor;
    int64_t count = 1;
    int i, contiguous = 1;

    memset(&tensor, 0, sizeof tensor);
    if (exchange->tensor_from_object(value, &tensor) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (tensor.device.type == DL_CUDA ? tensor.device.id != facts->device
                                      : tensor.device.type != DL_CPU || !facts->emulated)
        return 0;
    for (i = tensor.ndim - 1; i >= 0; i--) {
        if (tensor.strides != NULL && tensor.shape[i] != 1 && tensor.strides[i] != count)
            contiguous = 0;
        if (__builtin_mul_overflow(count, tensor.shape[i], &count))
            return 0;
    }
    for (i = 0; i < type_count; i++)
        if (types[i].code == tensor.type.code && types[i].bits == tensor.type.bits)
            break;
    if (i == type_count || tensor.type.lanes != 1 || count < 0)
        return 0;
    found->ptr = (char *)tensor.data + tensor.byte_offset;
    found->count = (uint64_t)count;
    found->type = types[i].type;
    if (count == 0)
        return 1;
    return contiguous && tensor.data != NULL ? is_plain(value, found->count, types[i].bits / 8) : 0;
}

/* ---- arguments ---- */

int fast_memory(PyObject *value, const struct facts *facts, struct operand *found)
{
    PyObject *class;
    int i;

    if (value == NULL)
        return 0;
    class = (PyObject *)Py_TYPE(value);
    if (class == array_class)
        return array_operand(value, facts->device, found);
    for (i = 0; i < tensor_classes; i++)
        if (class == tensors[i].class)
            return tensor_operand(value, tensors[i].exchange, facts, found);
    return 0;
}

int fast_operation(PyObject *value, int *op)
{
    PyObject *found;

    *op = SYMWIN_SUM;
    if (value == NULL)
        return 1;
    if (!PyUnicode_CheckExact(value))
        return 0;
    found = PyDict_GetItemWithError(op_names, value);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : 0;
    *op = (int)PyLong_AsLong(found);
    return 1;
}

int fast_rank(PyObject *value, int *rank)
{
    long found;

    if (!PyLong_CheckExact(value))
        return 0;
    found = PyLong_AsLong(value);
    if (found < 0 || found > INT32_MAX) {
        PyErr_Clear();
        return 0;
    }
    *rank = (int)found;
    return 1;
}

static int stream_number(PyObject *value, struct CUstream_st **stream)
{
    unsigned long long found = PyLong_AsUnsignedLongLong(value);

    if (found == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    *stream = (struct CUstream_st *)(uintptr_t)found;
    return 1;
}

int fast_stream(PyObject *value, int device, struct CUstream_st **stream)
{
    unsigned long long handle, where;
    PyObject *found, *number_of;
    int known;

    *stream = NULL;
    if (value == NULL || value == Py_None)
        return 1;
    if (PyLong_CheckExact(value))
        return stream_number(value, stream);
    if ((PyObject *)Py_TYPE(value) == stream_class) {
        known = number(value, name.handle, &handle); /* None if it was destroyed */
        if (known == 1)
            known = number(value, name.device_index, &where);
        if (known == 1 && where != (unsigned long long)device)
            known = 0;
        if (known == 1)
            *stream = (struct CUstream_st *)(uintptr_t)handle;
        return known;
    }
    number_of = PyLong_FromLong(device);
    if (number_of == NULL)
        return -1;
    found = PyObject_CallFunctionObjArgs(handle_of, value, number_of, NULL);
    Py_DECREF(number_of);
    if (found == NULL)
        return -1;
    known = PyLong_Check(found) && stream_number(found, stream);
    Py_DECREF(found);
    return known;
}
