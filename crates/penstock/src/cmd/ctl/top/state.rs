//! What `penstock ctl top` shows, and what each key does to it. No terminal, no socket, no clock.

use logic::peers::PeerSetEntry;
use logic::sessions::Sort;
use serde_json::Value;

use crate::cmd::ctl::word::quoted;
use crate::output::plain;

/// Sessions that are asked for: more than a page, so that one can look around.
const MOST: usize = 500;

/// Longest reason of the server, in characters, that fits beside other words in a line of 80 columns.
const MOST_OF_A_REASON: usize = 46;

/// Longest filter in characters.
const LONGEST_FILTER: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
    /// The terminal has another size.
    Resized,
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// The server is to be asked at once.
    Refresh,
    /// A command for the server, whose answer is shown.
    Order(String),
    Quit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Focus {
    #[default]
    Sessions,
    Backends,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Look,
    /// A filter is being typed.
    Type(String),
    /// A question that `y` answers.
    Ask { question: String, command: String },
}

/// One backend, with its pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Backend {
    pub(super) pool: String,
    pub(super) name: String,
    pub(super) value: Value,
}

#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) status: Value,
    pub(super) backends: Vec<Backend>,
    pub(super) sessions: Vec<Value>,
    /// Sessions that match, of which `sessions` has the first.
    pub(super) matched: u64,
    pub(super) focus: Focus,
    pub(super) mode: Mode,
    /// Place in [`SORTS`].
    sort: usize,
    /// What the operator typed, and the options of `sessions` that it means.
    pub(super) filter: String,
    options: Vec<String>,
    /// Selected lines. Of sessions the id is kept, so that a new order moves the line and not the choice.
    pub(super) session: usize,
    session_id: Option<u64>,
    pub(super) backend: usize,
    /// The last answer or fault, on one line, until the next key.
    pub(super) said: String,
    /// Number of answers and faults so far.
    pub(super) sayings: u64,
}

const SORTS: [Sort; 5] = [Sort::Age, Sort::Bytes, Sort::Rate, Sort::Requests, Sort::Newest];

/// Returns a text of a JSON object; empty if there is none.
pub(super) fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

impl View {
    pub(super) fn sort(&self) -> Sort {
        SORTS[self.sort % SORTS.len()]
    }

    /// The command that asks for the sessions.
    pub(super) fn sessions_command(&self) -> String {
        let mut command = format!("sessions --sort {} --limit {MOST}", self.sort());
        for word in &self.options {
            command.push(' ');
            command.push_str(&quoted(word));
        }
        command + " json"
    }

    pub(super) fn take_status(&mut self, status: Value) {
        let pools = status["pools"].as_array().into_iter().flatten();
        self.backends = pools
            .flat_map(|pool| {
                let backends = pool["backends"].as_array().into_iter().flatten();
                backends.map(|backend| Backend {
                    pool: text(pool, "name").to_owned(),
                    name: text(backend, "name").to_owned(),
                    value: backend.clone(),
                })
            })
            .collect();
        self.status = status;
        self.backend = self.backend.min(self.backends.len().saturating_sub(1));
    }

    pub(super) fn take_sessions(&mut self, mut answer: Value) {
        self.matched = answer["matched"].as_u64().unwrap_or(0);
        self.sessions = match answer["sessions"].take() {
            Value::Array(all) => all,
            _ => Vec::new(),
        };
        let same = self.sessions.iter().position(|one| one["id"].as_u64() == self.session_id);
        self.session =
            same.filter(|_| self.session_id.is_some()).unwrap_or(self.session).min(self.last_session());
        self.session_id = self.sessions.get(self.session).and_then(|one| one["id"].as_u64());
    }

    /// Shows that the server does not take the filter, and goes on without it.
    pub(super) fn refuse_sessions(&mut self, why: &str) {
        if self.options.is_empty() {
            return self.fail(why);
        }
        // Without the list of what there is: it does not fit in the line, and the screen has it.
        let clause = why.lines().next().unwrap_or_default();
        let clause = clause.split_once("; ").map_or(clause, |(before, _)| before);
        self.fail(&match clause.chars().count() {
            ..=MOST_OF_A_REASON => format!("{clause}: shown without a filter"),
            _ => "the server does not take this filter: shown without it".to_owned(),
        });
        self.options.clear();
        self.filter.clear();
    }

    pub(super) fn say(&mut self, text: &str) {
        self.sayings += 1;
        self.said = plain(text.lines().next().unwrap_or_default());
    }

    pub(super) fn fail(&mut self, why: &str) {
        self.say(&format!("error: {why}"));
    }

    /// The operator has had time to read the message: the keys are shown again.
    pub(super) fn forget_said(&mut self) {
        self.said.clear();
    }

    fn last_session(&self) -> usize {
        self.sessions.len().saturating_sub(1)
    }

    pub(super) fn key(&mut self, key: Key, size: Size) -> Action {
        if key == Key::Interrupt {
            return Action::Quit;
        }
        if key != Key::Resized {
            self.forget_said();
        }
        match std::mem::take(&mut self.mode) {
            Mode::Look => self.look(key, size),
            Mode::Type(typed) => self.type_filter(typed, key),
            Mode::Ask { question, command } => match key {
                Key::Char('y' | 'Y') => Action::Order(command),
                Key::Resized => {
                    self.mode = Mode::Ask { question, command };
                    Action::Nothing
                }
                _ => {
                    self.say("not done");
                    Action::Nothing
                }
            },
        }
    }

    fn look(&mut self, key: Key, size: Size) -> Action {
        let page = size.height.saturating_sub(12).max(1);
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('s') => {
                self.sort = (self.sort + 1) % SORTS.len();
                (self.session, self.session_id) = (0, None);
                return Action::Refresh;
            }
            Key::Char('/') => self.mode = Mode::Type(self.filter.clone()),
            Key::Char('k') => self.ask_to_end(),
            Key::Char('d') => self.ask_to_drain(),
            Key::Tab => {
                self.focus = match self.focus {
                    Focus::Sessions => Focus::Backends,
                    Focus::Backends => Focus::Sessions,
                };
            }
            Key::Up => self.select(|at, _| at.saturating_sub(1)),
            Key::Down => self.select(|at, last| (at + 1).min(last)),
            Key::PageUp => self.select(|at, _| at.saturating_sub(page)),
            Key::PageDown => self.select(|at, last| (at + page).min(last)),
            Key::Home => self.select(|_, _| 0),
            Key::End => self.select(|_, last| last),
            Key::Escape if !self.filter.is_empty() => {
                self.filter.clear();
                self.options.clear();
                return Action::Refresh;
            }
            _ => {}
        }
        Action::Nothing
    }

    fn select(&mut self, go: impl FnOnce(usize, usize) -> usize) {
        match self.focus {
            Focus::Sessions => {
                self.session = go(self.session, self.last_session());
                self.session_id = self.sessions.get(self.session).and_then(|one| one["id"].as_u64());
            }
            Focus::Backends => self.backend = go(self.backend, self.backends.len().saturating_sub(1)),
        }
    }

    fn ask_to_end(&mut self) {
        let chosen = self.sessions.get(self.session).filter(|_| self.focus == Focus::Sessions);
        let Some((session, id)) = chosen.and_then(|one| Some((one, one["id"].as_u64()?))) else {
            self.say("no session is selected (Tab goes to the sessions)");
            return;
        };
        let question = format!("end session {id} of client {}?", plain(text(session, "client")));
        self.mode = Mode::Ask { question, command: format!("kill {id}") };
    }

    fn ask_to_drain(&mut self) {
        let Some(backend) = self.backends.get(self.backend).filter(|_| self.focus == Focus::Backends) else {
            self.say("no backend is selected (Tab goes to the backends)");
            return;
        };
        let is_drained = text(&backend.value, "admission") == "draining";
        let (verb, does) = if is_drained { ("ready", "make ready") } else { ("drain", "drain") };
        let mut question = format!("{does} {} of pool {}?", plain(&backend.name), plain(&backend.pool));
        if !is_drained && let Some(then) = self.after_the_last(backend) {
            let (name, pool) = (plain(&backend.name), plain(&backend.pool));
            question = format!("drain {name}, the LAST of pool {pool} ({then})?");
        }
        let command = format!("{verb} {} {}", quoted(&backend.pool), quoted(&backend.name));
        self.mode = Mode::Ask { question, command };
    }

    /// What becomes of clients if no other backend of the pool can take their sessions; `None` if one can.
    fn after_the_last(&self, backend: &Backend) -> Option<String> {
        let takes = |one: &&Backend| {
            let value = &one.value;
            let weight = value["weight_override"].as_u64().or(value["weight"].as_u64());
            one.pool == backend.pool
                && matches!(text(value, "state"), "up" | "unchecked")
                && text(value, "admission") == "ready"
                && weight != Some(0)
        };
        if self.backends.iter().filter(takes).any(|one| one.name != backend.name) {
            return None;
        }
        let pools = self.status["pools"].as_array().into_iter().flatten();
        let fallback = pools
            .filter(|pool| text(pool, "name") == backend.pool)
            .find_map(|pool| pool["fallback"]["pool"].as_str().map(plain));
        Some(fallback.map_or("clients get errors".to_owned(), |pool| format!("clients go to pool {pool}")))
    }

    fn type_filter(&mut self, mut typed: String, key: Key) -> Action {
        match key {
            Key::Enter => {
                typed.trim().clone_into(&mut self.filter);
                self.options = self.options_of(&self.filter);
                (self.session, self.session_id) = (0, None);
                return Action::Refresh;
            }
            Key::Escape => return Action::Nothing,
            Key::Backspace => drop(typed.pop()),
            Key::Char(c) if typed.chars().count() < LONGEST_FILTER && !c.is_control() => typed.push(c),
            _ => {}
        }
        self.mode = Mode::Type(typed);
        Action::Nothing
    }

    /// The options of `sessions` for what was typed: a listener, a client's network, or else a backend, by words.
    fn options_of(&self, typed: &str) -> Vec<String> {
        let listeners = self.status["listeners"].as_array();
        let is_listener =
            |word: &str| listeners.into_iter().flatten().any(|listener| text(listener, "name") == word);
        let option = |word: &str| {
            let name = match word {
                _ if is_listener(word) => "--listener",
                _ if word.parse::<PeerSetEntry>().is_ok() => "--client",
                _ => "--backend",
            };
            [name.to_owned(), word.to_owned()]
        };
        typed.split_whitespace().flat_map(option).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SIZE: Size = Size { width: 80, height: 24 };

    fn view() -> View {
        let mut view = View::default();
        view.take_status(json!({
            "listeners": [{ "name": "web" }],
            "pools": [{ "name": "app", "backends": [
                { "name": "10.0.0.1:80", "state": "up", "admission": "ready" },
                { "name": "unix:/a b", "state": "up", "admission": "draining" },
                { "name": "10.0.0.3:80", "state": "up", "admission": "ready" },
            ] }],
        }));
        view.take_sessions(sessions(&[3, 5, 9]));
        view
    }

    fn sessions(ids: &[u64]) -> Value {
        let all: Vec<_> =
            ids.iter().map(|id| json!({ "id": id, "client": format!("192.0.2.{id}:1") })).collect();
        json!({ "matched": ids.len(), "sessions": all })
    }

    fn press(view: &mut View, keys: &[Key]) -> Action {
        keys.iter().map(|key| view.key(*key, SIZE)).last().unwrap()
    }

    fn typed(text: &str) -> Vec<Key> {
        text.chars().map(Key::Char).collect()
    }

    #[test]
    fn a_session_is_ended_only_after_a_yes() {
        let mut view = view();
        assert_eq!(press(&mut view, &[Key::Down, Key::Char('k')]), Action::Nothing);
        let Mode::Ask { question, .. } = &view.mode else { panic!("{view:?}") };
        assert_eq!(question, "end session 5 of client 192.0.2.5:1?");
        assert_eq!(press(&mut view, &[Key::Resized, Key::Char('y')]), Action::Order("kill 5".to_owned()));
        assert_eq!(press(&mut view, &[Key::Char('k'), Key::Char('n')]), Action::Nothing);
        assert_eq!((&view.mode, view.said.as_str()), (&Mode::Look, "not done"));
        assert_eq!(press(&mut view, &[Key::Tab, Key::Char('k'), Key::Char('y')]), Action::Nothing);
    }

    #[test]
    fn the_choice_stays_with_its_session_when_the_order_changes() {
        let mut view = view();
        press(&mut view, &[Key::Down]);
        view.take_sessions(sessions(&[9, 7, 3, 5]));
        assert_eq!(view.session, 3);
        // It has ended: the line stays.
        view.take_sessions(sessions(&[9, 7]));
        assert_eq!(view.session, 1);
        view.take_sessions(sessions(&[]));
        assert_eq!(press(&mut view, &[Key::Char('k'), Key::Char('y')]), Action::Nothing);
        for key in [Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Home, Key::End] {
            press(&mut view, &[key]);
            assert_eq!(view.session, 0);
        }
    }

    #[test]
    fn a_backend_is_drained_and_made_ready_again() {
        let mut view = view();
        press(&mut view, &[Key::Tab, Key::Char('d')]);
        assert_eq!(press(&mut view, &[Key::Char('y')]), Action::Order("drain app 10.0.0.1:80".to_owned()));
        press(&mut view, &[Key::Down, Key::Char('d')]);
        assert_eq!(press(&mut view, &[Key::Char('y')]), Action::Order("ready app \"unix:/a b\"".to_owned()));
    }

    #[test]
    fn what_is_typed_after_a_slash_becomes_options() {
        let mut view = view();
        press(&mut view, &[Key::Char('/')]);
        press(&mut view, &typed("web 10.0.0.0/8 app-1x"));
        assert_eq!(press(&mut view, &[Key::Backspace, Key::Enter]), Action::Refresh);
        assert_eq!(
            view.sessions_command(),
            "sessions --sort age --limit 500 --listener web --client 10.0.0.0/8 --backend app-1 json"
        );
        assert_eq!(press(&mut view, &[Key::Char('s')]), Action::Refresh);
        assert!(view.sessions_command().starts_with("sessions --sort bytes "), "{}", view.sessions_command());
        assert_eq!(press(&mut view, &[Key::Escape]), Action::Refresh);
        assert_eq!(view.sessions_command(), "sessions --sort bytes --limit 500 json");
        press(&mut view, &[Key::Char('/')]);
        press(&mut view, &typed(&"x".repeat(500)));
        assert!(matches!(&view.mode, Mode::Type(text) if text.len() == LONGEST_FILTER));
        // The server does not know it.
        press(&mut view, &[Key::Enter]);
        view.refuse_sessions("no backend \"x\"; the backends are:\na\u{1b}[2J");
        assert_eq!(view.said, "error: no backend \"x\": shown without a filter");
        press(&mut view, &[Key::Escape]);
        assert_eq!(view.said, "");
        assert_eq!(view.sessions_command(), "sessions --sort bytes --limit 500 json");
    }

    #[test]
    fn the_last_available_backend_is_named_before_it_is_drained() {
        let mut view = view();
        let mut status = view.status.clone();
        status["pools"][0]["backends"][2]["state"] = json!("down");
        view.take_status(status.clone());
        press(&mut view, &[Key::Tab, Key::Char('d')]);
        let asked = |view: &View| match &view.mode {
            Mode::Ask { question, .. } => question.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(asked(&view), "drain 10.0.0.1:80, the LAST of pool app (clients get errors)?");
        press(&mut view, &[Key::Char('n')]);
        status["pools"][0]["fallback"] = json!({ "pool": "sorry" });
        view.take_status(status);
        press(&mut view, &[Key::Char('d')]);
        assert!(asked(&view).contains("clients go to pool sorry"), "{}", asked(&view));
    }

    #[test]
    fn a_message_goes_at_the_next_key() {
        let mut view = view();
        press(&mut view, &[Key::Char('k'), Key::Char('n')]);
        assert_eq!((view.said.as_str(), view.sayings), ("not done", 1));
        press(&mut view, &[Key::Resized]);
        assert_eq!(view.said, "not done");
        press(&mut view, &[Key::Down]);
        assert_eq!(view.said, "");
        view.say("drained");
        view.forget_said();
        assert_eq!((view.said.as_str(), view.sayings), ("", 2));
        // A long answer to a filter fits the line.
        press(&mut view, &[Key::Char('/')]);
        press(&mut view, &typed("y"));
        press(&mut view, &[Key::Enter]);
        view.refuse_sessions(&format!("no backend \"{}\"; the backends are:", "y".repeat(200)));
        assert!(view.said.len() < 80 && view.filter.is_empty(), "{}", view.said);
    }

    #[test]
    fn it_ends_from_everywhere() {
        assert_eq!(press(&mut view(), &[Key::Char('q')]), Action::Quit);
        for first in ['/', 'k', 's'] {
            assert_eq!(press(&mut view(), &[Key::Char(first), Key::Interrupt]), Action::Quit);
        }
        // A letter of a filter is none.
        assert_eq!(press(&mut view(), &[Key::Char('/'), Key::Char('q')]), Action::Nothing);
    }
}
