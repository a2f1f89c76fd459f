/* Access to a message of elements: element by element, and as words of eight bytes.
 *
 * A word is eight bytes of consecutive elements, the first in the low bits. The message's last word
 * may hold fewer elements; its upper bytes are then zero. Nothing outside the message is read or
 * written.
 */
#ifndef SYMWIN_KERNELS_WORDS_CUH
#define SYMWIN_KERNELS_WORDS_CUH

#include "../symwin/device.cuh"

/* Who accesses a message while a kernel runs: only this rank, or peers too. In the second case the
 * order of accesses comes from the values, not from release and acquire, so each access is relaxed
 * instead of weak. */
enum sw_access { SW_OWN, SW_SHARED };

/* One element of 1, 2, 4 or 8 bytes, zero-extended. */
template <int bytes, sw_access access>
SYMWIN_DEVICE uint64_t sw_element_load(uint64_t addr)
{
    if (access == SW_SHARED)
        return bytes == 1   ? symwin_load_relaxed_u8(addr)
               : bytes == 2 ? symwin_load_relaxed_u16(addr)
               : bytes == 4 ? symwin_load_relaxed_u32(addr)
                            : symwin_load_relaxed_u64(addr);
    return bytes == 1   ? symwin_load_u8(addr)
           : bytes == 2 ? symwin_load_u16(addr)
           : bytes == 4 ? symwin_load_u32(addr)
                        : symwin_load_u64(addr);
}

template <int bytes, sw_access access>
SYMWIN_DEVICE void sw_element_store(uint64_t addr, uint64_t value)
{
    const bool shared = access == SW_SHARED;

    if (bytes == 1)
        shared ? symwin_store_relaxed_u8(addr, (uint8_t)value)
               : symwin_store_u8(addr, (uint8_t)value);
    else if (bytes == 2)
        shared ? symwin_store_relaxed_u16(addr, (uint16_t)value)
               : symwin_store_u16(addr, (uint16_t)value);
    else if (bytes == 4)
        shared ? symwin_store_relaxed_u32(addr, (uint32_t)value)
               : symwin_store_u32(addr, (uint32_t)value);
    else
        shared ? symwin_store_relaxed_u64(addr, value) : symwin_store_u64(addr, value);
}

struct sw_message {
    uint64_t address;
    uint64_t bytes;
    bool aligned; /* to eight bytes */
    bool vectors; /* to sixteen */
};

SYMWIN_DEVICE sw_message sw_message_at(uint64_t address, uint64_t bytes)
{
    return {address, bytes, address % 8 == 0, address % 16 == 0};
}

/* The last bytes, fewer than 16, of a message that is aligned to 16: at most four accesses, with
 * zeros beyond. `rest` is their number, whole elements of `size` bytes. */
template <int size, sw_access access>
SYMWIN_DEVICE void sw_rest_load(uint64_t address, uint32_t rest, uint64_t word[2])
{
    const uint64_t from = address + (rest & 8);
    uint64_t part = 0;

    if (size <= 4 && (rest & 4) != 0)
        part = sw_element_load<4, access>(from);
    if (size <= 2 && (rest & 2) != 0)
        part |= sw_element_load<2, access>(from + (rest & 4)) << (rest & 4) * 8;
    if (size == 1 && (rest & 1) != 0)
        part |= sw_element_load<1, access>(from + (rest & 6)) << (rest & 6) * 8;
    word[0] = part;
    word[1] = 0;
    if ((rest & 8) != 0) {
        word[0] = sw_element_load<8, access>(address);
        word[1] = part;
    }
}

template <int size, sw_access access>
SYMWIN_DEVICE void sw_rest_store(uint64_t address, uint32_t rest, const uint64_t word[2])
{
    const uint64_t to = address + (rest & 8);
    const uint64_t part = (rest & 8) != 0 ? word[1] : word[0];

    if ((rest & 8) != 0)
        sw_element_store<8, access>(address, word[0]);
    if (size <= 4 && (rest & 4) != 0)
        sw_element_store<4, access>(to, part & 0xffffffffu);
    if (size <= 2 && (rest & 2) != 0)
        sw_element_store<2, access>(to + (rest & 4), part >> (rest & 4) * 8 & 0xffffu);
    if (size == 1 && (rest & 1) != 0)
        sw_element_store<1, access>(to + (rest & 6), part >> (rest & 6) * 8 & 0xffu);
}

/* Word `index` of a message of elements of `size` bytes; zero beyond its end. */
template <int size, sw_access access = SW_OWN>
SYMWIN_DEVICE uint64_t sw_word_load(const sw_message &message, uint64_t index)
{
    const uint64_t at = index * 8;
    uint64_t word = 0, part[8 / size] = {}; /* loaded together */

    if (at < message.bytes && message.bytes - at >= 8 && message.aligned)
        return sw_element_load<8, access>(message.address + at);
    SYMWIN_UNROLL
    for (uint32_t k = 0; k < 8; k += size)
        if (at + k < message.bytes)
            part[k / size] = sw_element_load<size, access>(message.address + at + k);
    SYMWIN_UNROLL
    for (uint32_t k = 0; k < 8; k += size)
        word |= part[k / size] << (k * 8);
    return word;
}

template <int size, sw_access access = SW_OWN>
SYMWIN_DEVICE void sw_word_store(const sw_message &message, uint64_t index, uint64_t word)
{
    const uint64_t at = index * 8;

    if (at < message.bytes && message.bytes - at >= 8 && message.aligned) {
        sw_element_store<8, access>(message.address + at, word);
        return;
    }
    SYMWIN_NO_UNROLL
    for (uint32_t k = 0; k < 8 && at + k < message.bytes; k += size)
        sw_element_store<size, access>(message.address + at + k, word >> (k * 8));
}

#endif
