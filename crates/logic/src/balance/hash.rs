//! Hashes of keys and backends: equal on every worker and every node.

/// XXH3, 64 bits. Not secret: a client that can choose its key can choose its backend.
pub fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
}

/// Mixes the bits of a 64-bit number. Bijective: different numbers stay different.
pub(super) fn mix(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}
