//! Places in a message head, as offsets: they survive moving or growing the buffer that holds the bytes.

use super::field::Field;

/// A range of bytes in a message head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset behind the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes this span names; `head` is the buffer it was parsed from. Empty when the span does not fit
    /// into `head`.
    pub fn of<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        head.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Nothing is there.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Offsets of a head are below [`super::request::MAX_HEAD`], so they fit.
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Where `part` lies in `whole`; `part` must be a slice of `whole`.
    pub(super) fn within(whole: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
        Self::new(start, start + part.len())
    }
}

/// One header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSpan {
    /// The name as sent.
    pub name: Span,
    /// The value without surrounding blanks.
    pub value: Span,
    /// What the name means to a proxy.
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
