//! ASCII armor (RFC 9580 section 6).

use base64ct::{Base64, Encoding};

use super::fault::KeyFault;

const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const BEGIN_SECRET: &str = "-----BEGIN PGP PRIVATE KEY BLOCK-----";
const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// Returns the binary form of a file. A file of which no line begins an armor is binary.
pub(super) fn remove(file: &[u8]) -> Result<Vec<u8>, KeyFault> {
    // Packets begin with a byte that is not ASCII.
    if file.first().is_some_and(|first| first & 0x80 != 0) {
        return Ok(file.to_vec());
    }
    let text = String::from_utf8_lossy(file);
    if text.contains(BEGIN_SECRET) {
        return Err(KeyFault::Secret);
    }
    let mut bytes = Vec::new();
    let mut lines = text.lines().map(str::trim_end);
    let mut blocks = 0;
    while lines.by_ref().any(|line| line == BEGIN) {
        blocks += 1;
        bytes.extend(block(&mut lines)?);
    }
    if blocks == 0 { Err(KeyFault::NoKey) } else { Ok(bytes) }
}

fn block<'t>(lines: &mut impl Iterator<Item = &'t str>) -> Result<Vec<u8>, KeyFault> {
    let mut body = String::new();
    let mut checksum = None;
    let mut is_header = true;
    for line in lines {
        if line == END {
            let bytes = Base64::decode_vec(&body).map_err(|_| KeyFault::Armor("it is not base64"))?;
            // RFC 9580 section 6.1: the checksum is optional.
            return match checksum {
                Some(sum) if sum != crc24(&bytes) => {
                    Err(KeyFault::Armor("its checksum is wrong: is the file whole?"))
                }
                _ => Ok(bytes),
            };
        }
        if is_header {
            // Headers end at an empty line; some programs leave both out.
            // Base64 has no colon; an empty header has nothing behind it.
            is_header = line.contains(':');
            if is_header || line.is_empty() {
                continue;
            }
        }
        match line.strip_prefix('=') {
            Some(sum) if sum.len() == 4 => {
                let sum =
                    Base64::decode_vec(sum).map_err(|_| KeyFault::Armor("its checksum is not base64"))?;
                checksum = Some(sum.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
            }
            _ => body.push_str(line),
        }
    }
    Err(KeyFault::Armor("it has no END line"))
}

/// RFC 9580 section 6.1.1.
fn crc24(bytes: &[u8]) -> u32 {
    let mut crc: u32 = 0xb7_04ce;
    for byte in bytes {
        crc ^= u32::from(*byte) << 16;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x100_0000 != 0 {
                crc ^= 0x186_4cfb;
            }
        }
    }
    crc & 0xff_ffff
}
