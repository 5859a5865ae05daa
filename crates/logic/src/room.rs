//! Figures without a key that the reference names: what of one connection may wait in memory or in the kernel.

/// Limit of all open request heads of an HTTP/2 connection, as a multiple of the largest allowed head.
pub const LARGE_HEADS: usize = 8;

/// Lower limit for the bytes of all open request heads, for configurations with a small head limit. Requests beyond it
/// wait: a page with a hundred requests whose cookies have 8 KiB is served.
pub const LEAST_OF_HEADS: usize = 320 * 1024;

/// Limit of what the fields of requests that wait for the end of others may cost together.
pub const WAITING_HEADS: usize = 512 * 1024;

/// Seconds that a request waits for the end of others before it is refused.
pub const WAITING_SECONDS: u64 = 10;

/// Largest number of bytes of one splice, and the requested size of its pipe. A quarter of it needs four times the
/// system calls and 1.5 times the CPU time per GB. The pipe uses the pages of the sockets: empty, it takes 10 KiB.
pub const PIPE: usize = 1024 * 1024;

/// Bytes after which a direction changes from copying to splicing. Splicing short transfers costs more than it saves
/// (62.5 against 65.4 us for a short session); a pipe pays after a few hundred KiB.
pub const SPLICE_AFTER: u64 = 256 * 1024;

/// Part of `held-heads` that trailers may take: one of so many.
pub const TRAILERS_SHARE: usize = 4;

/// What the smallest interim response counts of `http2.interim` of a pool.
pub const LEAST_INTERIM: usize = 2 * 1024;
