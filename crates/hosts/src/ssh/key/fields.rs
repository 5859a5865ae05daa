//! Checks the fields of a key blob after the algorithm, to detect truncated and mistyped keys, not weak numbers.

/// Error: the fields do not match the algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MalformedKey {
    /// The fields are truncated.
    Cut,
    /// Bytes follow the last field.
    Longer,
    Wrong(&'static str),
}

#[derive(Clone, Copy)]
enum Field {
    /// Any text, such as the application of a FIDO key.
    Text,
    /// An Ed25519 point (RFC 8709 section 4).
    Ed25519,
    /// Name of a curve, and an uncompressed point of this number of bytes (RFC 5656 section 3.1).
    Curve(&'static str, usize),
    /// Positive number (RFC 4251 section 5).
    Number,
}

/// Checks the fields of a known algorithm; fields of other algorithms are accepted.
pub(super) fn check(algorithm: &str, fields: &[u8]) -> Result<(), MalformedKey> {
    use Field::{Curve, Ed25519, Number, Text};
    let expected: &[Field] = match algorithm {
        "ssh-ed25519" => &[Ed25519],
        "ssh-rsa" => &[Number, Number],
        "ssh-dss" => &[Number, Number, Number, Number],
        "ecdsa-sha2-nistp256" => &[Curve("nistp256", 65)],
        "ecdsa-sha2-nistp384" => &[Curve("nistp384", 97)],
        "ecdsa-sha2-nistp521" => &[Curve("nistp521", 133)],
        "sk-ssh-ed25519@openssh.com" => &[Ed25519, Text],
        "sk-ecdsa-sha2-nistp256@openssh.com" => &[Curve("nistp256", 65), Text],
        _ => return Ok(()),
    };
    let mut rest = fields;
    for field in expected {
        rest = field.check(rest)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(MalformedKey::Longer) }
}

impl Field {
    fn check(self, bytes: &[u8]) -> Result<&[u8], MalformedKey> {
        let (field, rest) = string(bytes)?;
        let is_right = match self {
            Self::Text => true,
            Self::Ed25519 => field.len() == 32,
            Self::Number => {
                field.first().is_some_and(|first| first & 0x80 == 0) && field.iter().any(|byte| *byte != 0)
            }
            Self::Curve(name, length) => {
                let (point, rest) = string(rest)?;
                if field != name.as_bytes() {
                    return Err(MalformedKey::Wrong("its curve is not that of its algorithm"));
                }
                if point.len() != length || point[0] != 4 {
                    return Err(MalformedKey::Wrong("its point is not one of its curve"));
                }
                return Ok(rest);
            }
        };
        if is_right {
            return Ok(rest);
        }
        Err(MalformedKey::Wrong(match self {
            Self::Ed25519 => "an Ed25519 key has 32 bytes",
            _ => "a number in it is not positive",
        }))
    }
}

/// Reads a string with its length, and returns the string and the rest.
fn string(bytes: &[u8]) -> Result<(&[u8], &[u8]), MalformedKey> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(MalformedKey::Cut)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| MalformedKey::Cut)?;
    rest.split_at_checked(length).ok_or(MalformedKey::Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(all: &[&[u8]]) -> Vec<u8> {
        let one = |field: &&[u8]| [&u32::try_from(field.len()).unwrap().to_be_bytes()[..], *field].concat();
        all.iter().flat_map(one).collect()
    }

    #[test]
    fn key_that_was_cut_anywhere_or_has_more_behind_it_is_told_from_a_whole_one() {
        let point = [&[4][..], &[7; 64]].concat();
        let whole: [(&str, Vec<u8>); 4] = [
            ("ssh-ed25519", strings(&[&[7; 32]])),
            ("ssh-rsa", strings(&[&[1, 0, 1], &[0, 0x80, 9]])),
            ("ecdsa-sha2-nistp256", strings(&[b"nistp256", &point])),
            ("sk-ssh-ed25519@openssh.com", strings(&[&[7; 32], b"ssh:"])),
        ];
        for (algorithm, fields) in whole {
            assert_eq!(check(algorithm, &fields), Ok(()), "{algorithm}");
            for length in 0..fields.len() {
                assert_eq!(
                    check(algorithm, &fields[..length]),
                    Err(MalformedKey::Cut),
                    "{algorithm} at {length}"
                );
            }
            assert_eq!(
                check(algorithm, &[&fields[..], &[0; 3]].concat()),
                Err(MalformedKey::Longer),
                "{algorithm}"
            );
        }
        assert_eq!(check("ssh-new@example.com", b"anything"), Ok(()));
    }

    #[test]
    fn fields_that_cannot_be_are_named() {
        let point = [&[4][..], &[7; 64]].concat();
        let why = |algorithm: &str, fields: &[&[u8]]| match check(algorithm, &strings(fields)) {
            Err(MalformedKey::Wrong(why)) => why,
            other => panic!("{other:?}"),
        };
        for short in [&[][..], &[7; 5], &[7; 33]] {
            assert_eq!(why("ssh-ed25519", &[short]), "an Ed25519 key has 32 bytes");
        }
        for number in [&[][..], &[0, 0], &[0x80]] {
            assert_eq!(why("ssh-rsa", &[&[3], number]), "a number in it is not positive");
        }
        let curve = "its curve is not that of its algorithm";
        assert_eq!(why("ecdsa-sha2-nistp256", &[b"nistp384", &point]), curve);
        let not_there = "its point is not one of its curve";
        assert_eq!(why("ecdsa-sha2-nistp256", &[b"nistp256", &point[1..]]), not_there);
        assert_eq!(why("ecdsa-sha2-nistp256", &[b"nistp256", b""]), not_there);
        assert_eq!(why("ecdsa-sha2-nistp256", &[b"nistp256", &[2; 65]]), not_there);
    }
}
