/* The plain host reference with which all collectives are compared, and inputs for it.
 *
 * It does what the kernels promise, one element after another: operands in rank order; f16, bf16
 * and fp8 in f32 with one rounding at the end; everything else in its own type, integers modulo
 * their width; an average divides the sum, integers truncating; a pre-multiplied sum is the sum of
 * inputs that reference_premultiply() has multiplied. So the one-shot and the two-shot
 * must agree with it to the bit. Pure functions; any thread.
 */
#ifndef SYMWIN_TESTS_REFERENCE_H
#define SYMWIN_TESTS_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t reference_bytes(symwin_type type); /* of one element */

/* Elements first .. first + count - 1 of rank `rank`'s input, the same for the same arguments.
 *
 * Floats are finite, of both signs and several magnitudes, with some zeros and subnormals, and
 * small enough that 72 ranks do not overflow (PROD: near 1). Integers are any bits. */
void reference_fill(symwin_type type, symwin_op op, uint64_t seed, int rank, size_t first,
                    size_t count, void *out);

/* The same with any bits: NaNs, infinities, overflow. */
void reference_fill_wild(symwin_type type, uint64_t seed, int rank, size_t first, size_t count,
                         void *out);

/* A rank's scalar for a pre-multiplied sum, as the bits of an element: of a float between 0.5 and 2
 * in magnitude, of an integer any. */
uint64_t reference_scalar(symwin_type type, uint64_t seed, int rank);

/* Multiplies elements by a scalar; each product is rounded to the type. */
void reference_premultiply(symwin_type type, uint64_t scalar, void *data, size_t count);

/* Small whole numbers of floats of 64, 32 and 16 bits: for multicast, whose order of additions is
 * the hardware's. */
void reference_fill_whole(symwin_type type, unsigned seed, int rank, size_t first, size_t count,
                          void *to);

/* out[i] = op over inputs[0][i] ... inputs[nranks - 1][i]. `out` may be one of the inputs. */
void reference_allreduce(symwin_type type, symwin_op op, int nranks, const void *const *inputs,
                         void *out, size_t count);

/* Index of the first element that differs, -1 if none does. Any NaN equals any NaN; zeros of
 * different sign differ. */
int64_t reference_compare(symwin_type type, const void *got, const void *want, size_t count);

/* The same for floats with a tolerance of `ulps` steps of the type (zeros are one value), for
 * algorithms that promise neither order nor a single rounding. Integers: as above. */
int64_t reference_compare_ulps(symwin_type type, const void *got, const void *want, size_t count,
                               unsigned ulps);

/* Writes element `index` as text, for messages; returns `text`. */
const char *reference_print(symwin_type type, const void *data, size_t index, char *text,
                            size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
