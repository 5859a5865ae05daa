//! Counts how often a request has passed through Penstock (`CDN-Loop`, RFC 8586), to stop request loops.
//!
//! Each hop adds one member with the name `penstock`, and the members are counted. `Via` (RFC 9110 section 7.6.3) is
//! not used because servers change their responses for it: nginx, for example, does not compress them. The name is the
//! same in every process, so a loop over several processes is detected like a loop over one, also across a restart. A
//! chain of several proxies is no loop, so a request is refused only above a limit.
//!
//! Any client can send this header. Members are counted without regard to quotes and surrounding text, so that a client
//! cannot hide them; a forged member only makes the client's own request fail sooner. For the same reason neither
//! `Connection` nor the configuration can remove the header.

use super::span::HeaderSpan;
use crate::http1::field::Field;

/// Number of Penstock's members in the `CDN-Loop` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hops {
    /// The request has no `CDN-Loop`.
    #[default]
    Untold,
    /// The request has a `CDN-Loop` with this number of Penstock's members.
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

    /// Adds the members of one more line.
    pub(super) fn read(self, value: &[u8]) -> Self {
        let ours = value.split(|&byte| byte == b',').filter(|member| is_ours(member)).count();
        Self::Told(self.count().saturating_add(u32::try_from(ours).unwrap_or(u32::MAX)))
    }
}

/// Appends one line for the next hop: the members received, and Penstock's own. All in one line, because some servers
/// keep only the first of several.
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

/// Tells whether a member has Penstock's name; parameters and quotes are ignored.
fn is_ours(member: &[u8]) -> bool {
    let name = member.split(|&byte| byte == b';').next().unwrap_or_default();
    let is_around = |byte: &u8| matches!(byte, b' ' | b'\t' | b'"');
    let start = name.iter().position(|byte| !is_around(byte)).unwrap_or(name.len());
    let end = name.iter().rposition(|byte| !is_around(byte)).map_or(start, |last| last + 1);
    name[start..end].eq_ignore_ascii_case(NAME)
}

/// `cdn-id` of Penstock, a pseudonym (RFC 8586 section 2).
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
