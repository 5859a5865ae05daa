//! Completions of shells and man pages: both are made of the arguments, so each command is in them.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use testing::server::penstock;
use testing::tools::program;

fn printed(arguments: &[&str]) -> String {
    let output = penstock(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that the help of a command lists, but for `help`.
fn commands(of: &[&str]) -> BTreeSet<String> {
    let text = printed(&[of, &["--help"]].concat());
    let Some((_, list)) = text.split_once("\nCommands:\n") else { return BTreeSet::new() };
    let lines = list.split("\n\n").next().unwrap().lines().filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn each_shell_gets_completions_with_every_command_of_ctl() {
    let names = commands(&["ctl"]);
    assert!(names.len() > 25 && names.contains("why"), "{names:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        let words: BTreeSet<&str> = script
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .filter(|w| !w.is_empty())
            .collect();
        let missing: Vec<_> = names.iter().filter(|name| !words.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{shell} does not know {missing:?}");
        assert!(script.contains("pending"), "{shell} does not know the options of why");
    }
    let output = penstock(&["completions", "sh"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("bash") && said.contains("fish"), "it names those that there are: {said}");
}

#[test]
fn bash_reads_its_completions_and_completes_the_commands_of_ctl_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock");
    fs::write(&file, printed(&["completions", "bash"])).unwrap();
    let bash = |arguments: &[&str]| {
        let output = Command::new(program("bash")).args(arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    bash(&["-n", file.to_str().unwrap()]);
    let completed = |words: &str, last: &str| -> BTreeSet<String> {
        let script = format!(
            "source {}; COMP_WORDS=({words} '{last}'); COMP_CWORD=$(({words_count})); \
             _penstock penstock '{last}' ctl; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display(),
            words_count = words.split(' ').count()
        );
        bash(&["-c", &script]).lines().map(str::to_owned).collect()
    };
    let all = completed("penstock ctl", "");
    let missing: Vec<_> = commands(&["ctl"]).difference(&all).cloned().collect();
    assert!(missing.is_empty(), "{missing:?} of {all:?}");
    assert_eq!(completed("penstock ctl", "beg"), ["begin".to_owned()].into());
    assert!(completed("penstock ctl why", "--pe").contains("--pending"));
}

#[test]
fn every_command_has_a_man_page_with_its_options() {
    let directory = tempfile::tempdir().unwrap();
    printed(&["man", "--directory", directory.path().to_str().unwrap()]);
    let page = |words: &[&str]| {
        let name = format!("{}.1", [&["penstock"], words].concat().join("-"));
        let text =
            fs::read_to_string(directory.path().join(&name)).unwrap_or_else(|why| panic!("{name}: {why}"));
        for part in [".TH ", ".SH NAME", ".SH SYNOPSIS"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        text
    };
    let mut pages = 1;
    let whole = page(&[]);
    for command in commands(&[]) {
        pages += 1;
        assert!(
            whole.contains(&format!("penstock\\-{}(1)", command.replace('-', "\\-"))),
            "{command}: {whole}"
        );
        page(&[&command]);
        for inner in commands(&[&command]) {
            pages += 1;
            page(&[&command, &inner]);
        }
    }
    assert!(pages > 60, "only {pages} pages");
    assert!(page(&["ctl", "why"]).contains("\\-\\-pending"));
}
