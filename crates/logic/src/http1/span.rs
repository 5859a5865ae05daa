//! Positions in a message head, as offsets: they stay valid when the buffer is moved or grows.

use super::field::Field;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Returns the bytes of the span; `head` is the buffer that was parsed. Empty if the span is outside `head`.
    pub fn of<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        head.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// The cast is lossless: offsets in a head are below [`super::request::MAX_HEAD`].
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Position of `part` in `whole`; `part` must be a slice of `whole`.
    pub(super) fn within(whole: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
        Self::new(start, start + part.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSpan {
    pub name: Span,
    /// Value without surrounding blanks.
    pub value: Span,
    pub field: Field,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_does_not_fit_is_empty_and_never_panics() {
        assert_eq!(Span { start: 4, end: 9 }.of(b"abc"), b"");
        assert_eq!(Span { start: 2, end: 1 }.of(b"abc"), b"");
        assert_eq!(Span { start: 2, end: 1 }.len(), 0);
    }
}
