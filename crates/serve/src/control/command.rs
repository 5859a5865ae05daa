//! The commands of the control socket. One table holds names, arguments, help and handlers, also for "did you mean".

use std::sync::{Arc, LazyLock};

use access::policy::Role;
use logic::transaction::Ask;
use proxy::front::Front;
use serde_json::{Value, json};
use state::State;
use state::dsr::start_confirmation::Phase;
use state::events::Event;
use zeroize::Zeroizing;

use super::change;
use super::client::PeerCredentials;
use super::sessions;
use super::words::{Quotes, Word, split};
use crate::report::older::OlderReport;
use crate::report::{self, Status, tables};

use call::{Call, did_you_mean, has_part, lines, to_json};
pub(super) use call::{Command, Following, Format, Later, Refusal, Step};

mod call;
pub(super) mod capture;
mod dsr;
mod health;
mod log_level;
mod marks;
mod packets;
#[cfg(test)]
mod random;
mod rights;
mod upgrade;
mod why;

/// Number of events shown if the command names no number.
const EVENTS: usize = 50;

pub(super) fn run(line: &str, front: &Arc<Front>, who: &PeerCredentials) -> Step {
    let (words, format) = match words_of(line) {
        Ok(read) => read,
        Err(message) => return Step::Refused(message.into()),
    };
    let Some((name, arguments)) = words.split_first() else { return Step::Nothing };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return Step::Refused(unknown(name));
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let needed = (command.role)(&arguments);
    if who.role < needed {
        return Step::Refused(rights::refuse(&front.state, who, name, needed).into());
    }
    let change = front.state.upgrade.change();
    if needed > Role::View && change.is_none() {
        return Step::Refused(SETTLED.into());
    }
    // An upgrade does not wait for the end of a question.
    let _change = change.filter(|_| needed > Role::View);
    let call = Call { front, command, arguments: &arguments, format, who };
    (command.run)(&call).unwrap_or_else(Step::Refused)
}

/// Whether a line is a command that changes something, and that this role may give.
pub(super) fn changes(line: &str, role: Role) -> bool {
    let Ok((words, _)) = words_of(line) else { return false };
    let Some((name, arguments)) = words.split_first() else { return false };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    COMMANDS.iter().find(|command| command.name == name).is_some_and(|command| {
        let needed = (command.role)(&arguments);
        needed <= role && rights::is_change(name, &arguments, needed)
    })
}

/// The one-time password of a line `otp PASSWORD`.
pub(super) fn password(line: &str) -> Option<Zeroizing<String>> {
    let (words, _) = words_of(line).ok()?;
    match <[String; 2]>::try_from(words) {
        Ok([name, typed]) if name == "otp" => Some(typed.into()),
        _ => None,
    }
}

fn words_of(line: &str) -> Result<(Vec<String>, Format), &'static str> {
    let mut words = split(line)?;
    let mut format = Format::Text;
    if words.len() > 1 {
        // In quotes it is a value.
        let is_json = |word: &Word| word.text == "json" && word.quotes == Quotes::None;
        if words.last().is_some_and(is_json) {
            words.pop();
            format = Format::Json;
        } else if is_json(&words[0]) {
            words.remove(0);
            format = Format::Json;
        }
    }
    Ok((words.into_iter().map(|word| word.text).collect(), format))
}

/// What would change here now would not be in the state that the next process has.
const SETTLED: &str = "an upgrade is at its last step, and the next process would not know of this: give the command again in a second";

pub(super) fn event_line(format: Format, event: &Event) -> String {
    match format {
        Format::Text => tables::event(event),
        Format::Json => to_json(event),
    }
}

/// Adds a warning to an answer: the state file does not have the change yet, so a restart would lose it.
pub(super) fn not_stored(state: &State, answer: String, format: Format) -> String {
    let why = match state.is_degraded(crate::kept::SUBJECT) {
        true => "penstock ctl status says why",
        false => "no store has ended within 1 s; the next one that succeeds has it",
    };
    warned(answer, format, &format!("not stored yet: a restart now would not have it ({why})"))
}

/// Adds a warning to an answer: these services have not followed yet.
pub(super) fn not_followed(late: &[String], answer: String, format: Format) -> String {
    let warning = format!(
        "the worker of {} has not followed within 1 s: until it does, new flows of dsr go where they went before",
        late.join(", ")
    );
    warned(answer, format, &warning)
}

fn warned(answer: String, format: Format, warning: &str) -> String {
    match (format, serde_json::from_str(&answer)) {
        (Format::Json, Ok(Value::Object(mut object))) => {
            let warning = match object.get("warning").and_then(Value::as_str) {
                Some(earlier) => format!("{earlier}; {warning}"),
                None => warning.to_owned(),
            };
            object.insert("warning".to_owned(), json!(warning));
            Value::Object(object).to_string()
        }
        _ => format!("{}\nwarning: {warning}", answer.trim_end()),
    }
}

/// Writes a sentence as a text answer, or as the JSON object `{"COMMAND": SENTENCE}`.
pub(super) fn said(format: Format, command: &str, sentence: &str) -> String {
    match format {
        Format::Text => sentence.to_owned(),
        Format::Json => json!({ command: sentence }).to_string(),
    }
}

const COMMANDS: &[Command] = &[
    Command {
        name: "status",
        role: |_| Role::View,
        arguments: "",
        help: "what is served, degraded things first",
        run: |call| {
            call.expect_arguments(0)?;
            let status = Status::read(call.front);
            Ok(call.answer(|| tables::status(&status), || to_json(&status)))
        },
    },
    Command {
        name: "backends",
        role: |_| Role::View,
        arguments: "[POOL]",
        help: "backends with health and share of traffic",
        run: backends,
    },
    Command {
        name: "certs",
        role: |_| Role::View,
        arguments: "[NAME]",
        help: "certificates, faulty ones first, then by expiry",
        run: certificates,
    },
    Command {
        name: "clients",
        role: |_| Role::View,
        arguments: "[POOL] [within TIME]",
        help: "clients of sticky pools, each with its backend, the latest first; all, or those seen within a time",
        run: clients,
    },
    Command {
        name: "events",
        role: |_| Role::View,
        arguments: "[N] [follow]",
        help: "the last N events; with `follow` new ones too, until you send a line",
        run: events,
    },
    Command {
        name: "sessions",
        role: |_| Role::View,
        arguments: "[OPTIONS]",
        help: "open sessions",
        run: list_sessions,
    },
    Command {
        name: "kill",
        role: |_| Role::Operate,
        arguments: "ID...|OPTIONS",
        help: "end sessions at once",
        run: end_sessions,
    },
    Command {
        name: "why",
        role: |_| Role::View,
        arguments: "[OPTIONS] URL|--session ID",
        help: "which backend a session would get, step by step",
        run: why::run,
    },
    Command {
        name: "dsr",
        role: rights::dsr,
        arguments: "status|explain SOURCE DESTINATION tcp|udp|trace LIMITS [FILTER]",
        help: "services of dsr listeners, what would happen with a packet, or a trace as `capture`",
        run: services,
    },
    Command {
        name: "drain",
        role: |_| Role::Operate,
        arguments: "[POOL] BACKEND [--for TIME]",
        help: "give a backend no new sessions, until `ready` or for a time; its open ones go on",
        run: marks::drain,
    },
    Command {
        name: "ready",
        role: |_| Role::Operate,
        arguments: "[POOL] BACKEND",
        help: "give a drained backend new sessions again",
        run: marks::ready,
    },
    Command {
        name: "weight",
        role: |_| Role::Operate,
        arguments: "[POOL] BACKEND N|default",
        help: "set the weight of a backend, over reloads and restarts, until `default`",
        run: marks::weight,
    },
    Command {
        name: "show",
        role: |_| Role::Admin,
        arguments: "[PATH]",
        help: "the configuration that is served, or one part",
        run: |call| change::show(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "set",
        role: |_| Role::Admin,
        arguments: "PATH VALUE",
        help: "give a key a value",
        run: |call| change::set(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "add",
        role: |_| Role::Admin,
        arguments: "PATH VALUE",
        help: "append to a list, put an entry before another one, or make a table",
        run: |call| change::add(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "remove",
        role: |_| Role::Admin,
        arguments: "PATH [VALUE]",
        help: "remove a key, a table or the entry of a list",
        run: |call| change::remove(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "begin",
        role: |_| Role::Admin,
        arguments: "",
        help: "collect changes until `commit`",
        run: |call| call.expect_arguments(0).and_then(|()| call.ask(Ask::Begin)),
    },
    Command {
        name: "diff",
        role: |_| Role::Admin,
        arguments: "",
        help: "what `commit` would change; without a transaction, what is not saved",
        run: |call| call.expect_arguments(0).and_then(|()| call.ask(Ask::Diff)),
    },
    Command {
        name: "commit",
        role: |_| Role::Admin,
        arguments: "[confirm TIME]",
        help: "serve the changes; with a time, until then unless `confirm` comes",
        run: |call| {
            call.ask(
                change::commit(call.arguments)
                    .map_err(|wrong| wrong.map_or_else(|| call.usage(), Refusal::from))?,
            )
        },
    },
    Command {
        name: "confirm",
        role: |_| Role::Admin,
        arguments: "",
        help: "keep a commit that waits for this",
        run: |call| call.expect_arguments(0).and_then(|()| call.ask(Ask::Confirm)),
    },
    Command {
        name: "abort",
        role: |_| Role::Admin,
        arguments: "[force]",
        help: "drop the changes since `begin`; `force`: those of another user",
        run: |call| change::abort(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "undo",
        role: |_| Role::Admin,
        arguments: "[N [and-later]]",
        help: "serve what was served before the last change, or before change N and those after it",
        run: |call| change::undo(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "history",
        role: rights::history,
        arguments: "[N]",
        help: "changes with their operators, or the lines of change N",
        run: |call| change::history(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "save",
        role: |_| Role::Admin,
        arguments: "[done]",
        help: "what is to be written to the file; `done`: it was written",
        run: |call| change::save(call.arguments).map_or_else(|| Err(call.usage()), |ask| call.ask(ask)),
    },
    Command {
        name: "capture",
        role: |_| Role::Admin,
        arguments: "LISTENER for TIME size BYTES [client NETWORK]",
        help: "packets of its sessions as pcapng in Base64, until you send a line",
        run: capture,
    },
    Command {
        name: "health",
        role: |_| Role::View,
        arguments: "[POOL ...]",
        help: "whether clients should come here: an error says why not",
        run: judge_health,
    },
    Command {
        name: "log-level",
        role: |_| Role::Operate,
        arguments: "[LEVEL [--for TIME]|default]",
        help: "the level of the process log: show it, or change it for a time",
        run: log_level,
    },
    Command {
        name: "reload",
        role: |_| Role::Admin,
        arguments: "",
        help: "read the configuration again; a faulty one changes nothing",
        run: |call| call.expect_arguments(0).map(|()| Step::Reload(call.format)),
    },
    Command {
        name: "upgrade",
        role: |_| Role::Admin,
        arguments: "[check] [PROGRAM] [drain-for TIME]",
        help: "let another process take over, of a new version: no connection ends; `check` only tries it",
        run: upgrade::run,
    },
    Command {
        name: "stop",
        role: |_| Role::Admin,
        arguments: "",
        help: "drain and end, as SIGTERM does",
        run: |call| call.expect_arguments(0).map(|()| Step::Stop(call.format)),
    },
    Command { name: "help", role: |_| Role::View, arguments: "", help: "this list", run: help },
];

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.name)
}

fn backends(call: &Call<'_>) -> Result<Step, Refusal> {
    call.expect_arguments(1)?;
    let pool = call.arguments.first().copied();
    if let Some(pool) = pool {
        call.expect_pool(pool)?;
    }
    let pools = report::pools(call.front, pool);
    Ok(call.answer(|| tables::pools(&pools), || to_json(&pools)))
}

fn certificates(call: &Call<'_>) -> Result<Step, Refusal> {
    call.expect_arguments(1)?;
    let wanted = call.arguments.first().copied();
    let all = report::certificates::read(call.front, wanted);
    Ok(call.answer(|| report::certificates::text(&all, wanted), || to_json(&all)))
}

fn clients(call: &Call<'_>) -> Result<Step, Refusal> {
    let (words, within) = match call.arguments {
        [words @ .., "within", time] => {
            let within = config::duration(time).map_err(|why| format!("within {time}: {why}"))?;
            if within.is_zero() {
                return Err(format!("within {time}: it is longer than 0").into());
            }
            (words, Some(within))
        }
        words => (words, None),
    };
    let pool = match words {
        [] => None,
        [pool] => Some(*pool),
        _ => return Err(call.usage()),
    };
    if let Some(pool) = pool {
        call.expect_pool(pool)?;
    }
    let clients = report::clients::read(call.front, pool, within);
    if clients.is_empty() {
        let which = pool.map_or("no pool".to_owned(), |pool| format!("pool {}", text::terminal::line(pool)));
        let verb = if pool.is_some() { "does not balance" } else { "balances" };
        return Err(
            format!("{which} {verb} by \"sticky\" without a cookie: no clients are remembered").into()
        );
    }
    Ok(call.answer(|| report::clients::text(&clients), || to_json(&clients)))
}

fn judge_health(call: &Call<'_>) -> Result<Step, Refusal> {
    for pool in call.arguments {
        call.expect_pool(pool)?;
    }
    let draining = call.front.state.draining.load(std::sync::atomic::Ordering::Relaxed);
    let phase = if draining { report::Phase::Draining } else { report::Phase::Serving };
    let start = call.front.state.services.start_confirmation.phase();
    let pools = report::pools(call.front, None);
    let mut good = health::judge(phase, start, &pools, call.arguments).map_err(Refusal::from)?;
    good.push_str(&health::log_ins(&call.front.state.degraded()));
    Ok(call.answer(|| good.clone(), || json!({ "healthy": true, "reason": good }).to_string()))
}

fn services(call: &Call<'_>) -> Result<Step, Refusal> {
    if let ["trace", arguments @ ..] = call.arguments {
        let running = dsr::trace::run(call.front, &call.who.to_string(), arguments);
        return running.map(Step::Capture).map_err(|wrong| wrong.map_or_else(|| call.usage(), Refusal::from));
    }
    match dsr::read(call.arguments).map_err(|wrong| wrong.map_or_else(|| call.usage(), Refusal::from))? {
        dsr::Asked::Status => {
            let all: Vec<_> = call.front.state.services.all().into_iter().map(|(report, _)| report).collect();
            let start = &call.front.state.services.start_confirmation;
            let is_given_up = all.is_empty() && start.phase() == Phase::GivenUp;
            let text =
                || if is_given_up { report::dsr::GIVEN_UP.to_owned() } else { report::dsr::services(&all) };
            Ok(call.answer(text, || json!({ "services": all, "given_up": is_given_up }).to_string()))
        }
        dsr::Asked::Explain(flow) => {
            let (front, format) = (call.front.clone(), call.format);
            let answer = async move {
                let report = dsr::explain(&front, flow).await?;
                Ok(format.of(|| report.text(), || to_json(&report)))
            };
            Ok(Step::Later(Later(Box::pin(answer))))
        }
    }
}

fn log_level(call: &Call<'_>) -> Result<Step, Refusal> {
    let said = log_level::run(&call.front.state, &call.who.to_string(), call.arguments);
    let said = said.map_err(|wrong| wrong.map_or_else(|| call.usage(), Refusal::from))?;
    Ok(call.answer(|| said.text.clone(), || said.json.clone()))
}

fn capture(call: &Call<'_>) -> Result<Step, Refusal> {
    let running = capture::run(call.front, &call.who.to_string(), call.arguments);
    running.map(Step::Capture).map_err(|wrong| wrong.map_or_else(|| call.usage(), Refusal::from))
}

fn events(call: &Call<'_>) -> Result<Step, Refusal> {
    let (arguments, follows) = match call.arguments {
        [rest @ .., "follow"] | ["follow", rest @ ..] => (rest, Follows::Yes),
        all => (all, Follows::No),
    };
    let count = match arguments {
        [] => EVENTS,
        [count] => count.parse().map_err(|_| call.usage())?,
        _ => return Err(call.usage()),
    };
    if follows == Follows::Yes {
        return Ok(Step::Follow(Following { count, format: call.format }));
    }
    let events = call.front.state.events.last(count);
    Ok(call.answer(|| lines(events.iter().map(tables::event)), || to_json(&events)))
}

fn list_sessions(call: &Call<'_>) -> Result<Step, Refusal> {
    let wanted = sessions::read(call.front, call.arguments, has_part)?;
    if !wanted.is_question() {
        return Err(call.usage());
    }
    let (front, format) = (call.front.clone(), call.format);
    let answer = async move {
        let report = sessions::list(&front, wanted).await?;
        let text = || {
            let older = OlderReport::read(&front.state).and_then(|older| older.not_shown());
            let shown = report::sessions::text(&report);
            older.map_or_else(|| shown.clone(), |older| format!("{}\n{older}", shown.trim_end()))
        };
        Ok(format.of(text, || to_json(&report)))
    };
    Ok(Step::Later(Later(Box::pin(answer))))
}

fn end_sessions(call: &Call<'_>) -> Result<Step, Refusal> {
    let wanted = sessions::read(call.front, call.arguments, has_part)?;
    if !wanted.is_order() {
        return Err(call.usage());
    }
    let (front, format, who) = (call.front.clone(), call.format, call.who.clone());
    let answer = async move {
        let ended = sessions::end(&front, wanted, who).await?;
        Ok(format.of(|| ended.text(), || ended.json()))
    };
    Ok(Step::Later(Later(Box::pin(answer))))
}

#[derive(PartialEq, Eq)]
enum Follows {
    Yes,
    No,
}

fn help(call: &Call<'_>) -> Result<Step, Refusal> {
    call.expect_arguments(0)?;
    Ok(call.answer(|| HELP.clone(), || HELP_JSON.clone()))
}

static HELP: LazyLock<String> = LazyLock::new(|| {
    let list = COMMANDS
        .iter()
        .map(|command| help_line(&format!("{} {}", command.name, command.arguments), command.help));
    let json = help_line("... json", "the same for programs: one line of JSON");
    lines(list.chain([json]))
});

static HELP_JSON: LazyLock<String> = LazyLock::new(|| {
    let list: Vec<_> = COMMANDS
        .iter()
        .map(|command| json!({ "name": command.name, "arguments": command.arguments, "help": command.help }))
        .collect();
    Value::from(list).to_string()
});

/// A command and what it does; a long one has a line of its own.
fn help_line(command: &str, help: &str) -> String {
    const WIDTH: usize = 34;
    match command.len() {
        0..WIDTH => format!("{command:<WIDTH$}{help}"),
        _ => format!("{command}\n{:WIDTH$}{help}", ""),
    }
}

fn unknown(name: &str) -> Refusal {
    let hint = did_you_mean(name, COMMANDS.iter().map(|command| command.name));
    let shown: String = name.chars().take(40).collect();
    format!("unknown command \"{shown}\"{hint}; `help` lists all").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_guessed_and_a_strange_one_is_not() {
        assert_eq!(did_you_mean("statsu", ["status", "stop"].into_iter()), ", did you mean \"status\"?");
        assert_eq!(did_you_mean("GET", ["status", "stop"].into_iter()), "");
        assert_eq!(did_you_mean(&"x".repeat(4000), ["status"].into_iter()), "");
    }
}
