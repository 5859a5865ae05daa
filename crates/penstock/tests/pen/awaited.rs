//! Access lists, emergency servers and limits: what Pen's clients see, and Penstock's.

use testing::{Scripted, port, secs};

use crate::doors::{Door, Which, greeter};

text::words! {
    /// A subject that waits.
    enum Awaited: "subject" {
        Emergency = "emergency server",
        Denied = "client that a list denies",
        Abuse = "abuse server",
        Limits = "soft and hard limit",
    }
}

impl Awaited {
    /// What clients see.
    fn seen(self, which: Which) -> String {
        match self {
            Self::Emergency => {
                let last = Scripted::answering("e");
                let line = format!("-r -O poll -e {} @ 127.0.0.1:{}", last.address, port::free());
                Door::open(which, &line).asks(3).join(" ")
            }
            Self::Denied => {
                let server = Scripted::answering("a");
                let line = format!("-O client_acl~1 -O acl~1~deny~127.0.0.1 @ {}", server.address);
                let door = Door::open(which, &line);
                [1, 2].map(|client| door.ask_from(client)).join(" ")
            }
            Self::Abuse => {
                let servers = ["a", "abuse"].map(Scripted::answering);
                let line = format!(
                    "-O client_acl~1 -O acl~1~deny~127.0.0.1 -B {} @ {}",
                    servers[1].address, servers[0].address
                );
                let door = Door::open(which, &line);
                [1, 2].map(|client| door.ask_from(client)).join(" ")
            }
            Self::Limits => {
                let server = greeter("a");
                let door = Door::open(which, &format!("@ {}:1:2", server.address));
                // A client that returns to its server may go up to the hard limit, a new one to the soft one.
                let held = [1, 1, 2].map(|client| door.hold_from(client, secs(8)));
                held.map(|held| held.map_or("closed".to_owned(), |(_, name)| name)).join(" ")
            }
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::Emergency => "e e e",
            Self::Denied => "closed a",
            Self::Abuse => "abuse a",
            Self::Limits => "a a closed",
        }
    }

    #[track_caller]
    fn check(which: Which) {
        for subject in Self::ALL {
            assert_eq!(subject.seen(which), subject.expected(), "{subject}");
        }
    }
}

#[test]
fn pen_has_an_emergency_and_an_abuse_server_lists_and_two_limits() {
    Awaited::check(Which::Pen);
}

#[test]
fn penstock_has_them_too() {
    Awaited::check(Which::Penstock);
}
