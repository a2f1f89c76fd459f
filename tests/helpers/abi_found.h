/* What a header says about the driver's ABI, found by the compiler. */
#ifndef SYMWIN_TESTS_ABI_FOUND_H
#define SYMWIN_TESTS_ABI_FOUND_H

struct abi_fact {
    const char *name; /* "sizeof(CUuuid)", "offsetof(CUmemLocation, id)", "CUDA_ERROR_UNKNOWN" */
    long long value;
};

#define ABI_ABSENT 0x7fffffff /* the value of a constant that this cuda.h does not have yet */

enum abi_signature { ABI_DIFFERS, ABI_AGREES, ABI_NOT_DECLARED };

struct abi_function {
    const char *name;
    enum abi_signature signature;
};

/* Both end with a NULL name. The second is of cuda.h: empty where this was built without one. */
extern const struct abi_fact abi_ours[], abi_cuda[];

/* Whether cuda.h declares what driver_list.h does; ends with a NULL name. */
extern const struct abi_function abi_functions[];

extern const int abi_cuda_version; /* of that cuda.h; 0: there was none, or one before 12.4 */

/* The facts of the header that is included already. */
#define ABI_SIZE(type)                                                                             \
    {"sizeof(" #type ")", (long long)sizeof(type)},                                                \
        {"_Alignof(" #type ")", (long long)_Alignof(type)},
#define ABI_MEMBER(type, member)                                                                   \
    {"offsetof(" #type ", " #member ")", (long long)offsetof(type, member)},                       \
        {"sizeof(" #type "." #member ")", (long long)sizeof(((type *)0)->member)},
#define ABI_CONSTANT(name) {#name, (long long)(uintptr_t)(name)},
#define ABI_FACTS                                                                                  \
    ABI_TYPES(ABI_SIZE) ABI_MEMBERS(ABI_MEMBER) ABI_CONSTANTS(ABI_CONSTANT)                        \
    {                                                                                              \
        NULL, 0                                                                                    \
    }

#endif
