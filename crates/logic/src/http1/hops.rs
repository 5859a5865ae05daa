//! How often a request has passed through Penstock already (`CDN-Loop`, RFC 8586), so that a request that
//! goes in a circle ends.
//!
//! Each hop adds one member with our name, and the members are counted. `Via` (RFC 9110 section 7.6.3) would do as well, but
//! servers change what they answer for it: nginx, for one, does not compress for a request that has it. The name is the same
//! in every process, so that two that lead to each other are found like one that leads to itself, before and after a restart;
//! and a chain of several is no circle, so that only a number of them is refused.
//!
//! Any client can write this header. It is counted without regard to quotes and to what surrounds our name,
//! so that nothing that a client puts around our members hides them: a forged one only makes the client's own
//! request end sooner. For the same reason `Connection` cannot take it away, and no configuration can.

use super::span::HeaderSpan;
use crate::http1::field::Field;

/// How many of our members a request has in its `CDN-Loop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hops {
    /// It has no `CDN-Loop`.
    #[default]
    Untold,
    /// It has a `CDN-Loop`, with so many members of ours.
    Told(u32),
}

impl Hops {
    /// Times that the request has passed through Penstock before.
    pub fn count(self) -> u32 {
        match self {
            Self::Untold => 0,
            Self::Told(hops) => hops,
        }
    }

    /// The same after one more line.
    pub(super) fn read(self, value: &[u8]) -> Self {
        let ours = value.split(|&byte| byte == b',').filter(|member| is_ours(member)).count();
        Self::Told(self.count().saturating_add(u32::try_from(ours).unwrap_or(u32::MAX)))
    }
}

/// Appends the one line that tells the next hop: the members that were there, and ours. In one line, as there are servers on
/// the way that keep the first of several.
pub(super) fn write(out: &mut Vec<u8>, head: &[u8], headers: &[HeaderSpan], hops: Hops) {
    if hops == Hops::Untold {
        return out.extend_from_slice(b"CDN-Loop: penstock\r\n");
    }
    out.extend_from_slice(b"CDN-Loop: ");
    let told = headers.iter().filter(|line| line.field == Field::CdnLoop).map(|line| line.value.of(head));
    for value in told.filter(|value| !value.is_empty()) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(b"penstock\r\n");
}

/// Whether a member names us: its parameters do not count, nor do quotes around it.
fn is_ours(member: &[u8]) -> bool {
    let name = member.split(|&byte| byte == b';').next().unwrap_or_default();
    let is_around = |byte: &u8| matches!(byte, b' ' | b'\t' | b'"');
    let start = name.iter().position(|byte| !is_around(byte)).unwrap_or(name.len());
    let end = name.iter().rposition(|byte| !is_around(byte)).map_or(start, |last| last + 1);
    name[start..end].eq_ignore_ascii_case(NAME)
}

/// Our `cdn-id`, a pseudonym as RFC 8586 section 2 has it.
const NAME: &[u8] = b"penstock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_ours_are_counted_among_all_that_a_client_can_write_around_them() {
        for (value, hops) in [
            ("penstock", 1),
            ("cdn.example; trace=\"abc\", penstock, penstock", 2),
            ("PENSTOCK;a=b,Penstock ; c", 2),
            ("\"open, penstock, penstock", 2),
            ("a=\"x, penstock\", penstock", 2),
            ("\\\", penstock", 1),
            (",,,penstock,,", 1),
            ("penstocks, pen stock, my.penstock, penstock:80, x;penstock", 0),
            ("", 0),
            ("\u{e9}, \u{0}", 0),
        ] {
            assert_eq!(Hops::Untold.read(value.as_bytes()), Hops::Told(hops), "{value}");
        }
        assert_eq!(Hops::Told(3).read(b"a, penstock"), Hops::Told(4));
        assert_eq!(Hops::Told(u32::MAX).read(b"penstock"), Hops::Told(u32::MAX));
    }
}
