//! Checks of the service behind a forward: requests and valid answers. An open connection proves little: `ssh -L` of
//! OpenSSH accepts connections even if no service is behind the forward.

use super::plan::{Check, Endpoint};

/// Result of a check after the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerState {
    /// More bytes are needed.
    More,
    /// The service answers; the text is a short version of the answer, safe for terminals.
    Answers(String),
    /// Another service answers, or the answer is invalid.
    Wrong(String),
}

/// Limit of bytes of an answer that are read.
pub const MOST: usize = 4096;

/// Request to send to the service.
#[must_use]
pub fn question(check: &Check, at: &Endpoint) -> Vec<u8> {
    match check {
        Check::None | Check::Tcp | Check::Banner => Vec::new(),
        Check::Http { path } => {
            let host = match at {
                Endpoint::Tcp { .. } => at.to_string(),
                Endpoint::Unix(_) => "localhost".to_owned(),
            };
            let agent = concat!("penstock/", env!("CARGO_PKG_VERSION"));
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n")
                .into_bytes()
        }
        Check::NfsNull => null_call(),
    }
}

/// Judges the bytes `said`; `end` says if more bytes can come.
#[must_use]
pub fn judge(check: &Check, said: &[u8], end: End) -> AnswerState {
    let verdict = match check {
        Check::None => AnswerState::Answers("not asked".to_owned()),
        Check::Tcp if end == End::Closed && said.is_empty() => {
            AnswerState::Wrong("it closed the connection at once".to_owned())
        }
        Check::Tcp => match said.is_empty() {
            true => AnswerState::More,
            false => AnswerState::Answers("speaks".to_owned()),
        },
        Check::Banner => banner(said, end),
        Check::Http { .. } => http(said),
        Check::NfsNull => null_reply(said),
    };
    match (verdict, end) {
        (AnswerState::More, End::Closed) if said.is_empty() => {
            AnswerState::Wrong("it closed the connection without an answer".to_owned())
        }
        (AnswerState::More, End::Closed) => AnswerState::Wrong("it closed within its answer".to_owned()),
        (AnswerState::More, End::Open) if said.len() >= MOST => {
            AnswerState::Wrong(format!("no end within {MOST} bytes"))
        }
        (verdict, _) => verdict,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Open,
    Closed,
}

fn banner(said: &[u8], end: End) -> AnswerState {
    let line = said.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if said.is_empty() || (line.len() == said.len() && said.len() < 80 && end == End::Open && is_text(said)) {
        return AnswerState::More;
    }
    AnswerState::Answers(format!("says \"{}\"", shown(line)))
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (b' '..=b'~').contains(byte))
}

/// Checks the status line (RFC 9112 section 4).
fn http(said: &[u8]) -> AnswerState {
    let Some(end) = said.iter().position(|byte| *byte == b'\n') else {
        let wanted = b"HTTP/1.";
        let known = said.len().min(wanted.len());
        return match said[..known] == wanted[..known] {
            true => AnswerState::More,
            false => AnswerState::Wrong(format!("it does not speak HTTP: \"{}\"", shown(said))),
        };
    };
    let line = String::from_utf8_lossy(&said[..end]);
    let mut words = line.split_ascii_whitespace();
    let version = words.next().unwrap_or_default();
    match (version.starts_with("HTTP/1."), words.next().and_then(|status| status.parse::<u16>().ok())) {
        (true, Some(status @ 200..=399)) => AnswerState::Answers(format!("HTTP {status}")),
        (true, Some(status)) => AnswerState::Wrong(format!("HTTP status {status}")),
        _ => AnswerState::Wrong(format!("it does not speak HTTP: \"{}\"", shown(&said[..end]))),
    }
}

/// Builds a call of procedure 0 of NFS version 4 with the record mark of RPC over TCP (RFC 5531 sections 9 and 11).
fn null_call() -> Vec<u8> {
    const CALL: [u32; 10] = [NULL_XID, 0, 2, NFS, 4, 0, 0, 0, 0, 0];
    let mut message = (0x8000_0000 | 40u32).to_be_bytes().to_vec();
    CALL.iter().for_each(|word| message.extend_from_slice(&word.to_be_bytes()));
    message
}

/// Checks the reply. A server with another version of NFS reports its versions, which counts as an answer.
fn null_reply(said: &[u8]) -> AnswerState {
    let word = |at: usize| -> Option<u32> {
        said.get(at * 4..at * 4 + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
    };
    let (Some(mark), Some(xid), Some(kind), Some(status)) = (word(0), word(1), word(2), word(3)) else {
        return AnswerState::More;
    };
    if mark & 0x8000_0000 == 0 || xid != NULL_XID || kind != 1 {
        return AnswerState::Wrong(format!("it does not speak RPC: \"{}\"", shown(said)));
    }
    if status != 0 {
        return AnswerState::Wrong("the server refuses the call (RPC version or credentials)".to_owned());
    }
    let (Some(_flavour), Some(verifier)) = (word(4), word(5)) else { return AnswerState::More };
    let at = 6 + (verifier.min(400) as usize).div_ceil(4);
    match (word(at), word(at + 1), word(at + 2)) {
        (Some(0), ..) => AnswerState::Answers("NFS version 4".to_owned()),
        (Some(1), ..) => AnswerState::Wrong("it speaks RPC, but it is not an NFS server".to_owned()),
        (Some(2), Some(low), Some(high)) => {
            AnswerState::Answers(format!("NFS, versions {low} to {high} and not 4"))
        }
        (Some(2), ..) | (None, ..) => AnswerState::More,
        (Some(_), ..) => AnswerState::Wrong("the server could not answer the call".to_owned()),
    }
}

const NULL_XID: u32 = 0x7065_6e73;
const NFS: u32 = 100_003;

/// Start of an answer as text that is safe for terminals.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
    text.trim_end().chars().map(|c| if (' '..='~').contains(&c) { c } else { '.' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(words: &[u32]) -> Vec<u8> {
        let mut message = (0x8000_0000 | u32::try_from(words.len() * 4).unwrap()).to_be_bytes().to_vec();
        words.iter().for_each(|word| message.extend_from_slice(&word.to_be_bytes()));
        message
    }

    #[test]
    fn an_nfs_server_is_told_from_everything_else() {
        let good = reply(&[NULL_XID, 1, 0, 0, 0, 0]);
        assert_eq!(judge(&Check::NfsNull, &good, End::Open), AnswerState::Answers("NFS version 4".into()));
        for cut in 0..good.len() {
            assert_eq!(judge(&Check::NfsNull, &good[..cut], End::Open), AnswerState::More, "{cut}");
            let closed = judge(&Check::NfsNull, &good[..cut], End::Closed);
            assert!(matches!(closed, AnswerState::Wrong(_)), "{cut}");
        }
        let older = reply(&[NULL_XID, 1, 0, 0, 0, 2, 2, 3]);
        assert!(
            matches!(judge(&Check::NfsNull, &older, End::Open), AnswerState::Answers(text) if text.contains("2 to 3"))
        );
        let verified = reply(&[NULL_XID, 1, 0, 1, 4, 77, 0]);
        assert!(matches!(judge(&Check::NfsNull, &verified, End::Open), AnswerState::Answers(_)));
        for wrong in [
            reply(&[NULL_XID, 1, 0, 0, 0, 1]),
            reply(&[NULL_XID, 1, 1, 0, 2, 2]),
            reply(&[1, 1, 0, 0, 0, 0]),
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
        ] {
            assert!(matches!(judge(&Check::NfsNull, &wrong, End::Open), AnswerState::Wrong(_)), "{wrong:?}");
        }
        let endless = reply(&[NULL_XID, 1, 0, 0, u32::MAX, 0]);
        assert_eq!(judge(&Check::NfsNull, &endless, End::Open), AnswerState::More);
    }

    #[test]
    fn a_banner_is_a_line_and_is_made_harmless() {
        let said = b"SSH-2.0-x\x1b[2J\r\nmore";
        assert_eq!(
            judge(&Check::Banner, said, End::Open),
            AnswerState::Answers("says \"SSH-2.0-x.[2J\"".into())
        );
        assert_eq!(judge(&Check::Banner, b"220 mail", End::Open), AnswerState::More);
        assert!(matches!(judge(&Check::Banner, b"", End::Closed), AnswerState::Wrong(_)));
        assert!(matches!(judge(&Check::Banner, b"\x4a\0\0\0\x0a5.7", End::Open), AnswerState::Answers(_)));
    }

    #[test]
    fn a_status_decides_over_http() {
        let check = Check::Http { path: "/".into() };
        assert_eq!(judge(&check, b"HTTP/1.1 204 No", End::Open), AnswerState::More);
        assert_eq!(judge(&check, b"HTTP/1.1 204 No\r\n", End::Open), AnswerState::Answers("HTTP 204".into()));
        for wrong in [&b"HTTP/1.1 503 Down\r\n"[..], b"HTTP/1.1\r\n", b"SSH-2", b"\n"] {
            assert!(matches!(judge(&check, wrong, End::Open), AnswerState::Wrong(_)), "{wrong:?}");
        }
        let at = Endpoint::Tcp { host: "::1".into(), port: 80 };
        let asked = String::from_utf8(question(&check, &at)).unwrap();
        assert!(asked.starts_with("GET / HTTP/1.1\r\nHost: [::1]:80\r\n"), "{asked}");
    }

    #[test]
    fn a_connection_that_is_closed_at_once_is_no_service() {
        assert_eq!(judge(&Check::Tcp, b"", End::Open), AnswerState::More);
        assert!(matches!(judge(&Check::Tcp, b"", End::Closed), AnswerState::Wrong(_)));
        assert!(matches!(judge(&Check::Tcp, b"x", End::Closed), AnswerState::Answers(_)));
    }

    #[test]
    fn an_answer_without_end_is_refused() {
        let long = vec![b'H'; MOST];
        assert!(matches!(judge(&Check::Http { path: "/".into() }, &long, End::Open), AnswerState::Wrong(_)));
    }
}
