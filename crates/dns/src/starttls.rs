//! How TLS begins at services where a command of their protocol comes first: mail, news, files.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// When TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsStart {
    AtOnce,
    /// After a command of this protocol.
    After(Dialect),
}

/// A protocol with a command that begins TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// RFC 3207
    Smtp,
    /// RFC 9051 section 6.2.1
    Imap,
    /// RFC 2595 section 4
    Pop3,
    /// RFC 5804 section 2.2
    Sieve,
    /// RFC 4642
    Nntp,
    /// RFC 4217
    Ftp,
}

/// Limit of what a service says before TLS, in bytes.
const MOST: usize = 16 * 1024;

impl TlsStart {
    /// What is usual at a port. The error is for a port whose protocol is not spoken here.
    ///
    /// # Errors
    /// TLS begins there in a way that is not spoken here.
    pub fn of_port(port: u16) -> Result<Self, String> {
        Ok(match port {
            25 | 587 => Self::After(Dialect::Smtp),
            143 => Self::After(Dialect::Imap),
            110 => Self::After(Dialect::Pop3),
            4190 => Self::After(Dialect::Sieve),
            119 => Self::After(Dialect::Nntp),
            21 => Self::After(Dialect::Ftp),
            389 | 5222 | 5269 => {
                return Err(format!(
                    "at port {port} TLS begins by a command of LDAP or XMPP, which is not spoken here"
                ));
            }
            _ => Self::AtOnce,
        })
    }
}

/// One step before TLS: what the service must say, and what is said then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    wanted: Wanted,
    then: &'static str,
}

/// What the service must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A reply with this code; with `-` behind the code, or without a code, more lines follow.
    Code(&'static str),
    /// A line that begins so.
    Line(&'static str),
    /// A line that begins with the tag, after any others, and goes on with OK.
    Tagged,
    /// A line that begins with OK, after any others but NO and BYE.
    Ok,
}

/// What a line is to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Wanted,
    /// The service says no.
    Other,
    /// More lines follow.
    Goes,
}

impl Dialect {
    /// The steps; after the last one TLS begins.
    const fn steps(self) -> &'static [Step] {
        const fn step(wanted: Wanted, then: &'static str) -> Step {
            Step { wanted, then }
        }
        match self {
            Self::Smtp => {
                &const {
                    [
                        step(Wanted::Code("220"), "EHLO penstock.invalid\r\n"),
                        step(Wanted::Code("250"), "STARTTLS\r\n"),
                        step(Wanted::Code("220"), ""),
                    ]
                }
            }
            Self::Imap => &const { [step(Wanted::Line("* OK"), "a STARTTLS\r\n"), step(Wanted::Tagged, "")] },
            Self::Pop3 => &const { [step(Wanted::Line("+OK"), "STLS\r\n"), step(Wanted::Line("+OK"), "")] },
            Self::Sieve => &const { [step(Wanted::Ok, "STARTTLS\r\n"), step(Wanted::Ok, "")] },
            Self::Nntp => {
                &const { [step(Wanted::Code("20"), "STARTTLS\r\n"), step(Wanted::Code("382"), "")] }
            }
            Self::Ftp => {
                &const { [step(Wanted::Code("220"), "AUTH TLS\r\n"), step(Wanted::Code("234"), "")] }
            }
        }
    }
}

impl Wanted {
    fn of(self, line: &str) -> Said {
        let begins = |word: &str| line.get(..word.len()).is_some_and(|it| it.eq_ignore_ascii_case(word));
        let is = |holds: bool| if holds { Said::Wanted } else { Said::Other };
        match self {
            Self::Code(code) => {
                let has_code = line.get(..3).is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
                let ends = matches!(line.as_bytes().get(3), None | Some(b' '));
                if has_code && ends { is(begins(code)) } else { Said::Goes }
            }
            Self::Line(word) => is(begins(word)),
            Self::Tagged if begins("a ") => is(begins("a OK")),
            Self::Ok if begins("OK") || begins("NO") || begins("BYE") => is(begins("OK")),
            Self::Tagged | Self::Ok => Said::Goes,
        }
    }
}

/// Speaks the protocol until TLS may begin.
///
/// # Errors
/// The connection breaks, or the service does not begin TLS.
pub(crate) async fn until_tls(stream: &mut TcpStream, dialect: Dialect) -> io::Result<()> {
    let mut input = Vec::new();
    let mut total = 0;
    for step in dialect.steps() {
        loop {
            let line = line(stream, &mut input, &mut total).await?;
            match step.wanted.of(&line) {
                Said::Wanted => break,
                Said::Goes => {}
                Said::Other => {
                    let said: String = line.chars().filter(|c| !c.is_control()).take(120).collect();
                    return Err(io::Error::other(format!("it does not begin TLS: it says \"{said}\"")));
                }
            }
        }
        if !input.is_empty() {
            // A machine on the path may have put them in before TLS (CVE-2011-0411).
            return Err(io::Error::other("it says more before it is asked"));
        }
        stream.write_all(step.then.as_bytes()).await?;
    }
    Ok(())
}

/// Reads one line, without its end.
async fn line(stream: &mut TcpStream, input: &mut Vec<u8>, total: &mut usize) -> io::Result<String> {
    loop {
        if let Some(at) = input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = input.drain(..=at).collect();
            return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).await?;
        *total += length;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if *total > MOST {
            return Err(io::Error::other("it says more than 16 KiB before TLS begins"));
        }
        input.extend(buffer.iter().take(length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How each step of a protocol takes its lines.
    fn taken(dialect: Dialect, replies: &[&str]) -> Vec<Vec<Said>> {
        let of = |(step, reply): (&Step, &&str)| reply.lines().map(|line| step.wanted.of(line)).collect();
        dialect.steps().iter().zip(replies).map(of).collect()
    }

    #[test]
    fn replies_of_each_protocol_are_read_to_their_last_line() {
        use Said::{Goes, Other, Wanted};
        for (dialect, replies) in [
            (Dialect::Smtp, &["220-mx\r\n220 ready", "250-mx\n250-STARTTLS\n250 OK", "220 go"][..]),
            (Dialect::Imap, &["* OK ready", "* CAPABILITY x\na ok go"]),
            (Dialect::Pop3, &["+OK ready", "+OK go"]),
            (Dialect::Sieve, &["\"STARTTLS\"\nOK", "OK \"go\""]),
            (Dialect::Nntp, &["201 no posting", "382 go"]),
            (Dialect::Ftp, &["220-hello\nany words\n220 ready", "234 go"]),
        ] {
            for of_step in taken(dialect, replies) {
                let (last, before) = of_step.split_last().unwrap();
                assert_eq!(*last, Wanted, "{dialect:?}");
                assert!(before.iter().all(|said| *said == Goes), "{dialect:?}");
            }
        }
        for (dialect, replies) in [
            (Dialect::Smtp, &["554 no"][..]),
            (Dialect::Imap, &["* PREAUTH", "a NO"]),
            (Dialect::Pop3, &["-ERR", "-ERR"]),
            (Dialect::Sieve, &["NO", "BYE"]),
            (Dialect::Nntp, &["400 no", "502 no"]),
            (Dialect::Ftp, &["421 no", "530 no"]),
        ] {
            assert!(taken(dialect, replies).iter().all(|of_step| *of_step == [Other]), "{dialect:?}");
        }
    }

    #[test]
    fn ports_have_the_protocols_that_are_usual_there() {
        assert_eq!(TlsStart::of_port(443), Ok(TlsStart::AtOnce));
        assert_eq!(TlsStart::of_port(25), Ok(TlsStart::After(Dialect::Smtp)));
        assert!(TlsStart::of_port(389).is_err());
    }
}
