//! The commands by which a client of a control listener begins (RFC 5321, RFC 3207, RFC 4954): programs for mail that know
//! SASL are clients, and nothing had to be invented.

use base64ct::{Base64, Encoding};

use super::login::Refusal;
use crate::identity::Mechanism;

/// Longest line in bytes, with its end: a Kerberos ticket with many groups, in Base64. RFC 4954 asks for 12,288 at least.
pub const LONGEST_LINE: usize = 64 * 1024;

/// A command before the log-in, and those few of SMTP that are known behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `EHLO` or `HELO`
    Hello(Greeting),
    StartTls,
    Auth {
        mechanism: String,
        initial: Option<Vec<u8>>,
    },
    Noop,
    Reset,
    Quit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// `EHLO`: the answer lists what the server can do.
    Extended,
    Plain,
}

/// Why a line is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCommand {
    Unknown,
    /// The command is known, its arguments are not.
    Arguments,
    /// The first response of `AUTH` is no Base64.
    NotBase64,
}

/// Reads a line without its end.
pub fn command(line: &[u8]) -> Result<Command, NoCommand> {
    let line = std::str::from_utf8(line).map_err(|_| NoCommand::Unknown)?;
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let verb = words.next().unwrap_or_default();
    let is = |name: &str| verb.eq_ignore_ascii_case(name);
    let arguments: Vec<&str> = words.take(4).collect();
    let alone = |command| if arguments.is_empty() { Ok(command) } else { Err(NoCommand::Arguments) };
    match () {
        () if is("EHLO") => Ok(Command::Hello(Greeting::Extended)),
        () if is("HELO") => Ok(Command::Hello(Greeting::Plain)),
        () if is("STARTTLS") => alone(Command::StartTls),
        () if is("NOOP") => Ok(Command::Noop),
        () if is("RSET") => alone(Command::Reset),
        () if is("QUIT") => alone(Command::Quit),
        () if is("AUTH") => {
            let (mechanism, initial) = match arguments[..] {
                [mechanism] => (mechanism, None),
                // An initial response that is empty.
                [mechanism, "="] => (mechanism, Some(Vec::new())),
                [mechanism, initial] => {
                    let decoded = Base64::decode_vec(initial).map_err(|_| NoCommand::NotBase64)?;
                    (mechanism, Some(decoded))
                }
                _ => return Err(NoCommand::Arguments),
            };
            Ok(Command::Auth { mechanism: mechanism.to_owned(), initial })
        }
        () => Err(NoCommand::Unknown),
    }
}

/// Reads the answer to a challenge.
pub fn response(line: &[u8]) -> Result<Vec<u8>, Refusal> {
    if line == b"*" {
        return Err(Refusal::Cancelled);
    }
    let text = std::str::from_utf8(line).map_err(|_| Refusal::NotBase64)?;
    Base64::decode_vec(text).map_err(|_| Refusal::NotBase64)
}

pub fn challenge(message: &[u8]) -> String {
    format!("334 {}\r\n", Base64::encode_string(message))
}

/// Whether the client may begin TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsOffer {
    Offered,
    Not,
}

/// The answer to `EHLO`: TLS is offered before it has begun, mechanisms behind it.
pub fn capabilities(name: &str, tls: TlsOffer, mechanisms: &[Mechanism]) -> String {
    let mut lines = vec![name.to_owned()];
    if tls == TlsOffer::Offered {
        lines.push("STARTTLS".to_owned());
    }
    if !mechanisms.is_empty() {
        let names: Vec<_> = mechanisms.iter().map(|mechanism| mechanism.name()).collect();
        lines.push(format!("AUTH {}", names.join(" ")));
    }
    // RFC 2034. GNU SASL does not look at what stands in the last line.
    lines.push("ENHANCEDSTATUSCODES".to_owned());
    let last = lines.len() - 1;
    let line = |(at, text): (usize, &String)| {
        let separator = if at == last { ' ' } else { '-' };
        format!("250{separator}{text}\r\n")
    };
    lines.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_in_any_case() {
        let read = |line: &str| command(line.as_bytes());
        assert_eq!(read("ehlo desk"), Ok(Command::Hello(Greeting::Extended)));
        assert_eq!(read("EHLO"), Ok(Command::Hello(Greeting::Extended)));
        assert_eq!(read("HELO x"), Ok(Command::Hello(Greeting::Plain)));
        assert_eq!(read("starttls"), Ok(Command::StartTls));
        assert_eq!(read("STARTTLS x"), Err(NoCommand::Arguments));
        let auth = |initial: Option<&[u8]>| {
            let initial = initial.map(<[u8]>::to_vec);
            Ok(Command::Auth { mechanism: "X-Y".to_owned(), initial })
        };
        assert_eq!(read("AUTH X-Y"), auth(None));
        assert_eq!(read("auth X-Y ="), auth(Some(b"")));
        assert_eq!(read("auth X-Y YWJj"), auth(Some(b"abc")));
        assert_eq!(read("auth X-Y YWJ"), Err(NoCommand::NotBase64));
        assert_eq!(read("auth"), Err(NoCommand::Arguments));
        assert_eq!(read("auth a b c"), Err(NoCommand::Arguments));
        assert_eq!(read(""), Err(NoCommand::Unknown));
        assert_eq!(read("GET / HTTP/1.1"), Err(NoCommand::Unknown));
        assert_eq!(command(b"\xff"), Err(NoCommand::Unknown));
    }

    #[test]
    fn responses_are_base64_or_end_the_log_in() {
        assert_eq!(response(b"YWJj"), Ok(b"abc".to_vec()));
        assert_eq!(response(b""), Ok(Vec::new()));
        assert_eq!(response(b"*"), Err(Refusal::Cancelled));
        for bad in [&b"YWJ"[..], b"YWJj ", b"=", b"\xff", b"YWJj\0"] {
            assert_eq!(response(bad), Err(Refusal::NotBase64), "{bad:?}");
        }
    }

    #[test]
    fn mechanisms_are_listed_only_where_they_may_be_used() {
        assert_eq!(
            capabilities("gw", TlsOffer::Offered, &[]),
            "250-gw\r\n250-STARTTLS\r\n250 ENHANCEDSTATUSCODES\r\n"
        );
        let all = capabilities("gw", TlsOffer::Not, &[Mechanism::ScramSha256Plus, Mechanism::ScramSha256]);
        assert_eq!(all, "250-gw\r\n250-AUTH SCRAM-SHA-256-PLUS SCRAM-SHA-256\r\n250 ENHANCEDSTATUSCODES\r\n");
        assert_eq!(challenge(b""), "334 \r\n");
    }
}
