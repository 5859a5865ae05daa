//! Buffers for writing heads. A head is needed only during one write, so a worker's requests share a few buffers
//! instead of allocating one per request.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Number of kept buffers. They take at most 128 KiB for each worker.
const KEPT: usize = 16;
const LARGEST: usize = 8 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, returned to the worker when it is dropped.
pub(super) struct HeadBuffer(Vec<u8>);

impl HeadBuffer {
    /// Returns a buffer of this worker, or a new one.
    pub(super) fn take() -> Self {
        Self(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Deref for HeadBuffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for HeadBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for HeadBuffer {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        if buffer.capacity() > LARGEST {
            return;
        }
        buffer.clear();
        // At the end of the thread the buffer is freed.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT {
                spare.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_a_large_one_does_not() {
        let mut first = HeadBuffer::take();
        first.extend_from_slice(&[1; 1000]);
        drop(first);
        let mut again = HeadBuffer::take();
        assert!(again.is_empty() && (1000..=LARGEST).contains(&again.capacity()));
        again.reserve(2 * LARGEST);
        drop(again);
        assert_eq!(HeadBuffer::take().capacity(), 0);
    }
}
