//! Random lines of control clients: each gets an answer or a refusal, what is said to be JSON is JSON, and who may only
//! read changes nothing.

use access::policy::Role;
use logic::transaction::Ask;

use super::*;
use crate::report::fixture;

/// Words that mean something somewhere, and some that mean nothing.
const WORDS: [&str; 48] = [
    "json",
    "follow",
    "for",
    "size",
    "client",
    "default",
    "confirm",
    "done",
    "force",
    "and-later",
    "app",
    "web",
    "all",
    "10.0.0.1:80",
    "unix:/run/app.sock",
    "0",
    "1",
    "7",
    "-1",
    "1000",
    "18446744073709551616",
    "1e9",
    "5s",
    "1h",
    "debug",
    "pool.app.retries",
    "pool.app.backends",
    "listener.web",
    "pool.\"a b\"",
    "pool..",
    "[]",
    "{}",
    "{ a = 1",
    "--json",
    "--from",
    "203.0.113.7",
    "http://shop/x",
    "--session",
    "--sort",
    "--listener",
    "\"",
    "'",
    "\\",
    "\"json\"",
    "#",
    "",
    "\u{1b}[2J",
    "\u{fffd}",
];

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        // Knuth, MMIX.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn line(&mut self) -> String {
        let commands: Vec<&str> = names().collect();
        let mut words = Vec::new();
        if self.below(10) > 0 {
            words.push(commands[self.below(commands.len())].to_owned());
        }
        for _ in 0..self.below(6) {
            words.push(match self.below(12) {
                0 => commands[self.below(commands.len())].to_owned(),
                1 => (0..self.below(8)).filter_map(|_| char::from_u32(self.below(0x3000) as u32)).collect(),
                2 => "x".repeat(self.below(3000)),
                _ => WORDS[self.below(WORDS.len())].to_owned(),
            });
        }
        words.join(" ").replace('\n', " ")
    }
}

fn client(role: Role) -> PeerCredentials {
    PeerCredentials { uid: 1000, name: Some("operator".into()), pid: Some(7), login: None, role }
}

/// Whether this is what a reader may get from a command. Others may have the same forms of answers, and change something:
/// each command is named.
fn only_reads(command: &str, step: &Step) -> bool {
    match step {
        Step::Nothing | Step::Refused(_) | Step::Mail(_) | Step::Password(_) => true,
        Step::Answer(_) => {
            ["status", "backends", "certs", "clients", "events", "health", "dsr", "help"].contains(&command)
        }
        Step::Follow(_) => command == "events",
        Step::Later(_) => ["sessions", "why", "dsr"].contains(&command),
        Step::Change(ask, _) => command == "history" && *ask == Ask::History { number: None },
        Step::Marked(..) | Step::Reload(_) | Step::Stop(_) | Step::Upgrade(..) | Step::Capture(_) => false,
    }
}

#[tokio::test]
async fn random_lines_are_answered_and_readers_change_nothing() {
    let front = fixture::front("backends = ['10.0.0.1:80', '10.0.0.2:80', 'unix:/run/app.sock']");
    let mut random = Random(17);
    let mut answered = 0;
    for number in 0..20_000 {
        let line = random.line();
        let who = client(if number % 2 == 0 { Role::View } else { Role::Admin });
        let step = run(&line, &front, &who);
        if who.role == Role::View {
            let words = split(&line).unwrap_or_default();
            let mut words = words.iter().filter(|word| word.text != "json" || word.quotes != Quotes::None);
            let command = words.next().map_or("", |word| &*word.text);
            assert!(only_reads(command, &step), "{line:?}");
        }
        match step {
            Step::Answer(text) => {
                answered += 1;
                let is_json = line.ends_with(" json") || line.starts_with("json ");
                if is_json && serde_json::from_str::<serde_json::Value>(&text).is_err() {
                    panic!("{line:?} is answered with {text:?}");
                }
            }
            Step::Refused(refusal) => {
                assert!(!refusal.message.is_empty(), "{line:?}");
                assert!(refusal.message.len() < line.len() * 2 + 1000, "{line:?}: {}", refusal.message);
            }
            _ => {}
        }
    }
    assert!(answered > 500, "{answered}");
}
