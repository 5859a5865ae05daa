//! Executes commands of penctl on the state that is translated.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::address;
use super::command::{Command, NoWord, ServerWord, SslWord};
use super::model::{Clients, Entry, Given, Said, Server, Switch, Verdict, grow};
use super::place::Place;
use super::reader::Reader;
use super::row::Form;
use crate::{Effect, fits};

/// Pen has the lists 0 to 9.
const LISTS: usize = 10;
/// Most servers: Pen makes an entry for every number below the highest.
const MOST_SERVERS: u64 = 100_000;

impl Reader<'_> {
    /// Executes a line; `place` is its file and number, or the option.
    pub(super) fn command(&mut self, line: &str, place: &str, depth: usize) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, words)) = words.split_first() else { return };
        if name.starts_with('#') {
            return;
        }
        let Ok(command) = name.parse::<Command>() else {
            let close = text::nearest::nearest(name, Command::WORDS.iter().copied());
            let meant = close.map(|close| format!("; did you mean {close:?}?")).unwrap_or_default();
            let why = format!("{name:?} is no command of Pen, which ignores the line too{meant}");
            return self.note(Effect::Dropped, place, &why);
        };
        self.known(command, words, place, depth);
    }

    fn known(&mut self, command: Command, words: &[&str], place: &str, depth: usize) {
        let on = || Some(Said { value: Switch::On, place: place.to_owned() });
        let said = |text: &str| Some(Said { value: text.to_owned(), place: place.to_owned() });
        let first = words.first().copied();
        match command {
            Command::Acl => self.acl(words, place),
            Command::Blacklist => {
                if let Some(number) = self.asked(first, place) {
                    self.pen.blacklist = number;
                }
            }
            Command::ClientAcl => {
                if let Some(given) = self.asked_list(first, place) {
                    self.pen.client_acl = Some(given);
                }
            }
            Command::ClientsMax => {
                if let Some(most) = self.asked(first, place) {
                    grow(&mut self.pen.clients_max, most);
                }
            }
            Command::ConnMax => {
                if let Some(most) = self.asked(first, place) {
                    grow(&mut self.pen.conn_max, most);
                }
            }
            Command::IdleTimeout => {
                if let Some(number) = self.asked(first, place) {
                    self.pen.idle_timeout = number;
                }
            }
            Command::Timeout => {
                if let Some(number) = self.asked(first, place) {
                    self.pen.timeout = number;
                }
            }
            Command::Tracking => {
                if let Some(number) = self.asked(first, place) {
                    self.pen.tracking = number;
                }
            }
            Command::Hash => self.pen.choice.hash = on(),
            Command::Http => self.pen.http = on(),
            Command::Prio => self.pen.choice.prio = on(),
            Command::RoundRobin => self.pen.choice.roundrobin = on(),
            Command::Stubborn => self.pen.choice.stubborn = on(),
            Command::Weight => self.pen.choice.weight = on(),
            Command::Transparent => self.pen.transparent = on(),
            Command::Keepalive => self.pen.keepalive = on(),
            Command::DsrIf => {
                if let Some(name) = self.shown(first, place) {
                    match fits::interface(name) {
                        Ok(()) => self.pen.dsr = said(name),
                        Err(why) => self.fault(place, &why, Some("dsr_if eth1")),
                    }
                }
            }
            Command::TarpitAcl if first == Some("-1") => self.pen.tarpit = None,
            Command::TarpitAcl => {
                if let Some(given) = self.asked_list(first, place) {
                    self.pen.tarpit = Some(given);
                }
            }
            Command::Dummy => self.note(Effect::Changed, place, command.row().form.text()),
            Command::Include => match first {
                Some(file) => self.file(file, place, depth + 1),
                None => self.fault(place, "`include` needs a file", None),
            },
            Command::Listen => {
                if let Some(text) = self.shown(first, place) {
                    match self.listens(text) {
                        Ok(value) => self.pen.listen = Some(Said { value, place: place.to_owned() }),
                        Err(why) => self.fault(place, &why, Some("listen [addr:]port")),
                    }
                }
            }
            Command::Log => {
                if let Some(text) = self.shown(first, place) {
                    self.pen.log = self.log(text, place);
                }
            }
            Command::No => self.no(words, place),
            Command::Server => self.server_command(words, place),
            Command::Source => match first {
                Some(text) if text.parse::<std::net::IpAddr>().is_ok() => self.pen.source = said(text),
                Some(text) => self.fault(place, &format!("{text:?} is not an address"), None),
                None => self.fault(place, "`source` needs an address; Pen would end here", None),
            },
            Command::SslCiphers => self.pen.tls.ciphers = first.and_then(said),
            Command::SslNames => {
                if let Some(text) = first {
                    self.pen.tls.names = self.path(text, place);
                }
            }
            Command::SslOption => self.ssl_option(first, place),
            Command::TcpFastclose => match first {
                Some(word @ ("up" | "down" | "both")) => self.pen.fast_close = said(word),
                // Pen takes every other word for `off`.
                Some(_) => self.pen.fast_close = None,
                None => self.note(Effect::Dropped, place, "without a word Pen ignores it too"),
            },
            Command::AbortOnError
            | Command::Ascii
            | Command::Block
            | Command::Close
            | Command::Connection
            | Command::Control
            | Command::ControlAcl
            | Command::Debug
            | Command::DelayedForward
            | Command::DsrIp
            | Command::Epoll
            | Command::Exit
            | Command::Idlers
            | Command::Kqueue
            | Command::Mode
            | Command::Peek
            | Command::PendingMax
            | Command::Pid
            | Command::Poll
            | Command::Recent
            | Command::Select
            | Command::Servers
            | Command::Socket
            | Command::SslRenegotiation
            | Command::SslOcsp
            | Command::Status
            | Command::TcpNodelay
            | Command::WebStats
            | Command::Write => self.left_out(command.row().form, place),
        }
    }

    /// The number after a command. `None` if there is none: Pen then shows the value.
    fn asked(&mut self, word: Option<&str>, place: &str) -> Option<Given<u64>> {
        self.shown(word, place).map(|word| self.number(word, place))
    }

    /// The same for the number of an access list.
    fn asked_list(&mut self, word: Option<&str>, place: &str) -> Given<usize> {
        let said = self.asked(word, place)??;
        // Pen takes list 0 for a number without a list.
        let value = usize::try_from(said.value).ok().filter(|list| *list < LISTS).unwrap_or(0);
        Some(Said { value, place: said.place })
    }

    fn shown<'w>(&mut self, word: Option<&'w str>, place: &str) -> Option<&'w str> {
        if word.is_none() {
            self.note(Effect::Dropped, place, "without a value Pen only shows what it is");
        }
        word
    }

    fn list(&mut self, word: Option<&str>, place: &str) -> Option<usize> {
        let number = word.and_then(|word| word.parse().ok()).filter(|number| *number < LISTS);
        match (number, word) {
            (Some(_), _) => {}
            (None, Some(word)) => {
                self.fault(place, &format!("{word:?} is no number of an access list: Pen has 0 to 9"), None)
            }
            (None, None) => self.fault(place, "the number of an access list from 0 to 9 is missing", None),
        }
        number
    }

    fn acl(&mut self, words: &[&str], place: &str) {
        const FORM: &str = "acl N permit|deny ADDRESS [MASK], acl N permit|deny ADDRESS/LENGTH for IPv6";
        let [list, verdict, clients @ ..] = words else {
            return self.fault(place, "this entry is not complete", Some(FORM));
        };
        let Some(list) = self.list(Some(list), place) else { return };
        let Ok(verdict) = verdict.parse::<Verdict>() else {
            return self.fault(place, &format!("{verdict:?} is neither permit nor deny"), Some(FORM));
        };
        match clients_of(clients) {
            Ok(clients) => {
                let entry = Said { value: Entry { verdict, clients }, place: place.to_owned() };
                self.pen.acls.entry(list).or_default().0.push(entry);
            }
            Err(why) => self.fault(place, &why, Some(FORM)),
        }
    }

    fn no(&mut self, words: &[&str], place: &str) {
        let Some(word) = words.first() else {
            return self.note(Effect::Dropped, place, "`no` without a word does nothing");
        };
        let Ok(word) = word.parse::<NoWord>() else {
            return self.note(
                Effect::Dropped,
                place,
                &format!("Pen has no `no {word}`, and ignores the line too"),
            );
        };
        let off = || Some(Said { value: Switch::Off, place: place.to_owned() });
        match word {
            NoWord::Acl => match words.get(1) {
                Some(list) => {
                    if let Some(list) = self.list(Some(list), place) {
                        self.pen.acls.remove(&list);
                    }
                }
                None => self.fault(place, "`no acl` needs the number of a list; Pen would end here", None),
            },
            NoWord::Hash => self.pen.choice.hash = off(),
            NoWord::Http => self.pen.http = off(),
            NoWord::Log => self.pen.log = None,
            NoWord::Prio => self.pen.choice.prio = off(),
            NoWord::RoundRobin => self.pen.choice.roundrobin = off(),
            NoWord::Stubborn => self.pen.choice.stubborn = off(),
            NoWord::Weight => self.pen.choice.weight = off(),
            NoWord::Transparent => self.pen.transparent = off(),
            NoWord::Keepalive => self.pen.keepalive = None,
            // `write` of Pen has these in every file.
            NoWord::AbortOnError | NoWord::Ascii | NoWord::Dummy | NoWord::Peek => {}
            NoWord::WebStats => {}
            NoWord::TcpNodelay => {
                self.note(
                    Effect::Changed,
                    place,
                    "TCP_NODELAY is always set: small packets are never held back",
                );
            }
            NoWord::Block => self.left_out(Command::Block.row().form, place),
            NoWord::DelayedForward => self.left_out(Command::DelayedForward.row().form, place),
        }
    }

    fn server_command(&mut self, words: &[&str], place: &str) {
        let Some((number, settings)) = words.split_first() else {
            return self.fault(place, "`server` needs a number", Some("server N address A port P"));
        };
        let Some(number) = self.number(number, place).map(|said| said.value) else { return };
        if number >= MOST_SERVERS {
            return self.fault(place, &format!("server {number}: at most {MOST_SERVERS} servers"), None);
        }
        let slot = usize::try_from(number).unwrap_or(0);
        let mut server = self.pen.servers.get(&slot).cloned().unwrap_or_default();
        for pair in settings.chunks(2) {
            let [word, value] = pair else {
                self.fault(place, &format!("{:?} has no value", pair.concat()), None);
                return;
            };
            match word.parse::<ServerWord>() {
                Ok(word) => self.server_word(&mut server, word, value, place),
                Err(_) => {
                    let why = format!("Pen has no {word:?} for a server, and ignores it too");
                    self.note(Effect::Dropped, place, &why);
                }
            }
        }
        self.pen.servers.insert(slot, server);
    }

    fn server_word(&mut self, server: &mut Server, word: ServerWord, value: &str, place: &str) {
        match word {
            ServerWord::Address => {
                let port = match &server.place {
                    Some(Place::Host { port, .. }) => *port,
                    Some(Place::Unix(_)) | None => None,
                };
                match address::place(value, port, self.outside) {
                    Ok(new) => server.place = Some(new),
                    Err(why) => self.fault(place, &why, None),
                }
                place.clone_into(&mut server.said_at);
            }
            ServerWord::Port => match (address::port_of(value, self.outside), &mut server.place) {
                (Ok(new), Some(Place::Host { port, .. })) => *port = Some(new),
                (Ok(_), Some(Place::Unix(_))) => {}
                (Ok(_), None) => {
                    self.fault(place, "the address of this server must come before its port", None)
                }
                (Err(why), _) => self.fault(place, &why, None),
            },
            ServerWord::Blacklist => server.blacklist = self.number(value, place),
            ServerWord::Acl => {
                if let Some(list) = self.list(Some(value), place) {
                    server.acl = list;
                }
            }
            ServerWord::Max => self.set(&mut server.soft, value, place),
            ServerWord::Hard => self.set(&mut server.hard, value, place),
            ServerWord::Weight => self.set(&mut server.weight, value, place),
            ServerWord::Prio => self.set(&mut server.prio, value, place),
        }
    }

    fn set(&mut self, number: &mut u64, text: &str, place: &str) {
        if let Some(said) = self.number(text, place) {
            *number = said.value;
        }
    }

    fn ssl_option(&mut self, word: Option<&str>, place: &str) {
        let on = || Some(Said { value: Switch::On, place: place.to_owned() });
        match word.map(str::parse::<SslWord>) {
            None => self.fault(place, "`ssl_option` needs a word", None),
            Some(Err(_)) => {
                self.note(Effect::Dropped, place, "Pen has no such option, and ignores the line too")
            }
            Some(Ok(SslWord::NoTlsv12)) => self.pen.tls.no_tls12 = on(),
            Some(Ok(SslWord::ServerPreference)) => self.pen.tls.server_order = on(),
            Some(Ok(SslWord::NoSslv2 | SslWord::NoSslv3 | SslWord::NoTlsv1 | SslWord::NoTlsv11)) => {
                self.left_out(Form::Needless("always so: TLS 1.2 and 1.3 are served"), place);
            }
        }
    }
}

fn clients_of(words: &[&str]) -> Result<Clients, String> {
    match words {
        ["country", country, ..] => Ok(Clients::Country((*country).to_owned())),
        [address, ..] if address.contains(':') => {
            let (address, length) = address.split_once('/').unwrap_or((address, "128"));
            let length = length.parse().ok().filter(|length| *length <= 128);
            match (address.parse::<Ipv6Addr>(), length) {
                (Ok(address), Some(length)) => Ok(Clients::Ipv6 { address: address.to_bits(), length }),
                (Err(_), _) => Err(format!("{address:?} is no IPv6 address")),
                (_, None) => Err("the length of the prefix is not from 0 to 128".to_owned()),
            }
        }
        [address, mask @ ..] => {
            let mask = mask.first().copied().unwrap_or("255.255.255.255");
            match (address.parse::<Ipv4Addr>(), mask.parse::<Ipv4Addr>()) {
                (Ok(address), Ok(mask)) => {
                    Ok(Clients::Ipv4 { address: address.to_bits(), mask: mask.to_bits() })
                }
                (Err(_), _) => Err(format!("{address:?} is no IPv4 address")),
                (_, Err(_)) => Err(format!("{mask:?} is no mask such as 255.255.255.0")),
            }
        }
        [] => Err("the address is missing".to_owned()),
    }
}
