//! Takes the options of a command line.

use super::address;
use super::model::{Given, Said, Server, Switch, grow};
use super::option::Opt;
use super::reader::Reader;
use super::row::Form;
use crate::{Effect, fits};

impl Reader<'_> {
    /// Takes an option; `argument` is empty if it has none.
    pub(super) fn option(&mut self, option: Opt, argument: &str) {
        let place = match argument {
            "" => format!("-{option}"),
            argument => format!("-{option} {argument}"),
        };
        let on = || Some(Said { value: Switch::On, place: place.clone() });
        let text = || Some(Said { value: argument.to_owned(), place: place.clone() });
        match option {
            Opt::Abuse => self.pen.abuse = self.server(argument, &place),
            Opt::Emergency => self.pen.emergency = self.server(argument, &place),
            Opt::Control if argument.contains('/') => {
                self.pen.control = self.socket(argument, &place);
            }
            Opt::Control => self.pen.control = text(),
            Opt::File => self.commands = text(),
            Opt::Http => self.pen.http = on(),
            Opt::Command | Opt::CommandToo => self.command(argument, &place, 0),
            Opt::Tracking => self.pen.tracking = self.number(argument, &place),
            Opt::Udp => self.pen.udp = on(),
            Opt::Weight => self.pen.choice.weight = on(),
            Opt::Blacklist => self.pen.blacklist = self.number(argument, &place),
            Opt::ClientsMax => {
                let most = self.number(argument, &place);
                grow(&mut self.pen.clients_max, most);
            }
            Opt::ConnMax => {
                let most = self.number(argument, &place);
                grow(&mut self.pen.conn_max, most);
            }
            Opt::Hash => self.pen.choice.hash = on(),
            Opt::Log => self.pen.log = self.log(argument, &place),
            Opt::PidFile => self.pen.pid_file = self.path(argument, &place),
            Opt::Backlog => self.pen.backlog = self.number(argument, &place),
            Opt::RoundRobin => self.pen.choice.roundrobin = on(),
            Opt::Stubborn => self.pen.choice.stubborn = on(),
            Opt::Timeout => {
                self.pen.timeout = self.number(argument, &place);
                if self.pen.timeout.as_ref().is_some_and(|said| said.value == 0) {
                    self.fault(&place, "the time to connect must be at least 1 second", None);
                }
            }
            Opt::User => match fits::account(argument) {
                Ok(()) => self.pen.user = text(),
                Err(why) => self.fault(&place, &why, None),
            },
            Opt::Certificate => self.pen.tls.certificate = self.present(argument, &place),
            Opt::Key => self.pen.tls.key = self.present(argument, &place),
            Opt::CaFile => self.pen.tls.ca_file = self.path(argument, &place),
            Opt::CaDirectory => self.pen.tls.ca_directory = self.path(argument, &place),
            Opt::RequirePeer => self.pen.tls.require = on(),
            Opt::HashOnly | Opt::Service => {
                self.fault(&place, option.row().form.text(), None);
            }
            Opt::DelayedForward
            | Opt::Poll
            | Opt::Kqueue
            | Opt::ServerTable
            | Opt::Exit
            | Opt::Ascii
            | Opt::Debug
            | Opt::Foreground
            | Opt::Jail
            | Opt::MultiAccept
            | Opt::NonBlocking
            | Opt::Status
            | Opt::SslCompat
            | Opt::SslProtocol => self.left_out(option.row().form, &place),
        }
    }
}

impl Reader<'_> {
    /// Says why an option or command has no line in the configuration.
    pub(super) fn left_out(&mut self, form: Form, place: &str) {
        self.note(Effect::Dropped, place, form.text());
    }

    fn socket(&mut self, text: &str, place: &str) -> Given<String> {
        let path = self.path(text, place)?;
        match fits::socket(&path.value) {
            Ok(()) => Some(path),
            Err(why) => {
                self.fault(place, &why, None);
                None
            }
        }
    }

    /// Where the log goes: `host:port` of a receiver, or a file.
    pub(super) fn log(&mut self, text: &str, place: &str) -> Given<String> {
        let receiver = text.rsplit_once(':').filter(|_| !text.contains('/'));
        let Some((host, port)) = receiver else { return self.path(text, place) };
        match fits::host(host).and_then(|()| address::port_of(port, self.outside)) {
            Ok(port) => Some(Said { value: format!("{host}:{port}"), place: place.to_owned() }),
            Err(why) => {
                self.fault(place, &why, None);
                None
            }
        }
    }

    pub(super) fn server(&mut self, text: &str, place: &str) -> Given<Server> {
        match address::server(text, self.outside) {
            Ok(server) => {
                let server = Server { said_at: place.to_owned(), ..server };
                Some(Said { value: server, place: place.to_owned() })
            }
            Err(why) => {
                self.fault(
                    place,
                    &why,
                    Some("a server is host:port:soft:hard:weight:prio, or the path of a Unix socket"),
                );
                None
            }
        }
    }
}
