//! A text that is overwritten before its memory is given back: what a user typed, and the question that has it.

use std::ops::Deref;

use crate::ffi;

pub(crate) struct Secret(String);

impl Secret {
    /// Takes a text over. Its memory must not have been moved while it grew.
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        bytes.resize(bytes.capacity(), 0);
        ffi::wipe(&mut bytes);
    }
}
