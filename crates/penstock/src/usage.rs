//! Answers to a command line that asks for help or is wrong.

use std::io::IsTerminal as _;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use text::nearest::nearest;

use crate::output::{Failure, complain, plain, print};

/// Adds the option that was meant by one that is not there: with two letters swapped it is none of those that clap finds.
pub(crate) fn suggest(error: &mut clap::Error, mut command: Command, words: impl Iterator<Item = String>) {
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidArg) else { return };
    if error.kind() != ErrorKind::UnknownArgument || error.get(ContextKind::SuggestedArg).is_some() {
        return;
    }
    for word in words {
        if let Some(found) = command.find_subcommand(&word) {
            command = found.clone();
        }
    }
    let Some(written) = written.strip_prefix("--") else { return };
    let known = command.get_arguments().filter(|one| !one.is_hide_set()).filter_map(clap::Arg::get_long);
    if let Some(meant) = nearest(written, known) {
        let meant = format!("--{meant}");
        error.insert(ContextKind::SuggestedArg, ContextValue::String(meant));
    }
}

/// Commands of `penstock ctl` under names that other programs have for them.
const OTHER_NAMES: [(&str, &str); 1] = [("undrain", "ready")];

/// Names the command of `penstock ctl` that was meant by one that is not there, and no command that is hidden.
pub(crate) fn suggest_command(error: &mut clap::Error, command: &Command, words: &[String]) {
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let known = OTHER_NAMES.iter().find(|(other, _)| other == written).map(|(_, ours)| *ours);
    let of_ctl = command.find_subcommand("ctl").and_then(|ctl| ctl.find_subcommand(known.unwrap_or(written)));
    let meant = match (of_ctl, known) {
        (Some(found), _) if words.first() == Some(written) => vec![format!("ctl {}", found.get_name())],
        (Some(_), Some(known)) if words.first().is_some_and(|word| word == "ctl") => vec![known.to_owned()],
        _ => match error.get(ContextKind::SuggestedSubcommand) {
            Some(ContextValue::Strings(names)) => {
                let is_hidden = |name: &str| command.find_subcommand(name).is_some_and(Command::is_hide_set);
                names.iter().filter(|name| !is_hidden(name)).cloned().collect()
            }
            _ => return,
        },
    };
    if meant.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
}

/// Refuses a private key on the command line without a word of it: the parser would print it as an unknown argument.
pub(crate) fn private_key(words: &[String]) -> Option<&'static str> {
    words.iter().any(|word| word.contains("PRIVATE KEY-----")).then_some(
        "an argument has a private key, which other users of this machine and the history of the shell can see\n  \
         hint: make another key with ssh-keygen; give the name of a file, or the public key of FILE.pub",
    )
}

/// What is wrong where a negative number stands for a value: the parser takes it for an option.
pub(crate) fn negative(error: &clap::Error, words: &[String]) -> Option<String> {
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_number = |word: &str| {
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    if error.kind() != ErrorKind::UnknownArgument || !is_number(written) {
        return None;
    }
    let at = words.iter().position(|word| is_number(word) && word.starts_with(written.as_str()))?;
    let option = at.checked_sub(1).and_then(|before| words.get(before));
    let option =
        option.filter(|word| word.starts_with('-') && !is_number(word)).map(|word| format!("{word} "));
    let shown = plain(&words[at]);
    Some(format!(
        "{}{shown}: a value here is never negative\n  hint: --help of the command says what it may be; a word that begins with - comes behind --",
        plain(&option.unwrap_or_default())
    ))
}

/// Prints help, the version, or what is wrong. Returns how the program ends.
pub(crate) fn answer(error: &clap::Error) -> Failure {
    let styled = error.render();
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let text = match is_wanted && std::io::stdout().is_terminal() {
            true => styled.ansi().to_string(),
            false => styled.to_string(),
        };
        return print(&text).err().unwrap_or(Failure::Status(0));
    }
    let text = match is_wanted && std::io::stderr().is_terminal() {
        true => styled.ansi().to_string(),
        false => styled.to_string(),
    };
    complain(&FAULTS.iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours)));
    Failure::Status(2)
}

/// Faults of numbers as the standard library words them, and as we do.
const FAULTS: [(&str, &str); 5] = [
    ("invalid digit found in string", "it is not a whole number"),
    ("cannot parse integer from empty string", "it is empty, not a whole number"),
    ("number too large to fit in target type", "it is too large"),
    ("number too small to fit in target type", "it is too small"),
    ("invalid float literal", "it is not a number"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_number_is_said_to_be_one_with_its_option() {
        let command = || Command::new("penstock").arg(clap::Arg::new("timeout").long("timeout"));
        let told = |words: &[&str]| {
            let error = command().try_get_matches_from([&["penstock"], words].concat()).unwrap_err();
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            negative(&error, &words)
        };
        let first = |words| told(words).unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        assert_eq!(first(&["--timeout", "-5"]), "--timeout -5: a value here is never negative");
        assert_eq!(first(&["--timeout", "-10m"]), "--timeout -10m: a value here is never negative");
        assert_eq!(first(&["-.5"]), "-.5: a value here is never negative");
        assert_eq!(told(&["--tim", "5"]), None);
    }

    #[test]
    fn a_command_of_ctl_is_found_and_a_hidden_one_is_not() {
        let ctl = || Command::new("ctl").subcommands(["reload", "ready"].map(Command::new));
        let command = || {
            let all = Command::new("penstock").subcommands([ctl(), Command::new("serve")]);
            all.subcommand(Command::new("bench-load").hide(true))
        };
        let told = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let line = std::iter::once("penstock").chain(line.split(' '));
            let mut error = command().try_get_matches_from(line).unwrap_err();
            suggest_command(&mut error, &command(), &words);
            error.to_string()
        };
        for (line, meant) in [("ctl undrain", "'ready'"), ("undrain", "'ctl ready'")] {
            assert!(told(line).contains(&format!("a similar subcommand exists: {meant}")), "{}", told(line));
        }
        assert!(told("reload").contains("a similar subcommand exists: 'ctl reload'"), "{}", told("reload"));
        assert!(told("serv").contains("'serve'"), "{}", told("serv"));
        assert!(!told("bench-loa").contains("bench-load'"), "{}", told("bench-loa"));
    }

    #[test]
    fn an_option_with_swapped_letters_is_found_among_those_of_its_command() {
        let command = || {
            let serve = Command::new("serve").arg(clap::Arg::new("dsr").long("dsr"));
            Command::new("penstock").subcommand(serve)
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (line, is_found) in
            [(["penstock", "serve", "--drs"], true), (["penstock", "serve", "--dxyz"], false)]
        {
            let mut error = command().try_get_matches_from(line).unwrap_err();
            suggest(&mut error, command(), words(&line).into_iter().skip(1));
            let text = error.to_string();
            assert_eq!(text.contains("a similar argument exists: '--dsr'"), is_found, "{text}");
        }
    }
}
