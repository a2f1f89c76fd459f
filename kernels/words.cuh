/* A message of elements, element by element and as words of eight bytes.
 *
 * A word is eight bytes of consecutive elements, the first in the low bits; the message's last word
 * may hold fewer, its upper bytes zero. Nothing outside the message is read or written.
 */
#ifndef SYMWIN_KERNELS_WORDS_CUH
#define SYMWIN_KERNELS_WORDS_CUH

#include "../symwin_device.cuh"

/* One element of 1, 2, 4 or 8 bytes, zero-extended. */
template <int bytes>
SYMWIN_DEVICE uint64_t sw_element_load(uint64_t addr)
{
    return bytes == 1   ? symwin_load_u8(addr)
           : bytes == 2 ? symwin_load_u16(addr)
           : bytes == 4 ? symwin_load_u32(addr)
                        : symwin_load_u64(addr);
}

template <int bytes>
SYMWIN_DEVICE void sw_element_store(uint64_t addr, uint64_t value)
{
    if (bytes == 1)
        symwin_store_u8(addr, (uint8_t)value);
    else if (bytes == 2)
        symwin_store_u16(addr, (uint16_t)value);
    else if (bytes == 4)
        symwin_store_u32(addr, (uint32_t)value);
    else
        symwin_store_u64(addr, value);
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

/* Word `index` of a message of elements of `size` bytes; zero beyond its end. */
template <int size>
SYMWIN_DEVICE uint64_t sw_word_load(const sw_message &message, uint64_t index)
{
    const uint64_t at = index * 8;
    uint64_t word = 0;

    if (at < message.bytes && message.bytes - at >= 8 && message.aligned)
        return symwin_load_u64(message.address + at);
    SYMWIN_NO_UNROLL
    for (uint32_t k = 0; k < 8 && at + k < message.bytes; k += size)
        word |= sw_element_load<size>(message.address + at + k) << (k * 8);
    return word;
}

template <int size>
SYMWIN_DEVICE void sw_word_store(const sw_message &message, uint64_t index, uint64_t word)
{
    const uint64_t at = index * 8;

    if (at < message.bytes && message.bytes - at >= 8 && message.aligned) {
        symwin_store_u64(message.address + at, word);
        return;
    }
    SYMWIN_NO_UNROLL
    for (uint32_t k = 0; k < 8 && at + k < message.bytes; k += size)
        sw_element_store<size>(message.address + at + k, word >> (k * 8));
}

#endif
