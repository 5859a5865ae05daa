//! Transfer of a script to a host over standard input. The script runs only after it arrived whole.
//!
//! A shell that runs its input (`sh -s`) runs half a script when the connection breaks, and commands in the script can
//! read the rest of the script. So a shell script is read to its end, checked, and run without input. A script for
//! another interpreter goes into a temporary file that is removed afterwards.

use text::shell::quote;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub command: String,
    pub input: Vec<u8>,
}

/// Prepares the script `source` named `name`, with `arguments`. `nonce` consists of letters and digits.
#[must_use]
pub fn sent(source: &[u8], name: &str, arguments: &[String], nonce: &str) -> Sent {
    let arguments: String = arguments.iter().map(|argument| format!(" {}", quote(argument))).collect();
    let line = interpreter(source);
    let words: Vec<&str> = line.split_whitespace().collect();
    let program = match words[..] {
        [env, program] if env.ends_with("/env") => program,
        [program, ..] => program,
        [] => "/bin/sh",
    };
    let base = program.rsplit('/').next().unwrap_or(program);
    let mut input = source.to_vec();
    if SHELLS.contains(&base) && words.len() <= 2 {
        let end = format!("#penstock-end-{nonce}");
        input.extend_from_slice(format!("\n{end}\n").as_bytes());
        let flags = match words[..] {
            [_, flag] if flag.starts_with('-') => format!(" {}", quote(flag)),
            _ => String::new(),
        };
        let read = format!("s=$(cat); case $s in *{end}) eval \"$s\";; *) {CUT}; exit 126;; esac");
        let command =
            format!("exec {}{flags} -c {} {}{arguments}", quote(program), quote(&read), quote(name));
        return Sent { command, input };
    }
    let size = input.len();
    let program: Vec<String> = words.iter().map(|word| quote(word)).collect();
    let run = format!(
        "f=$(mktemp) || exit 126; trap 'rm -f \"$f\"' EXIT; trap 'exit 143' HUP INT TERM; cat >\"$f\"; \
         [ $(wc -c <\"$f\") -eq {size} ] || {{ {CUT}; exit 126; }}; {} \"$f\" \"$@\" </dev/null",
        program.join(" ")
    );
    Sent { command: format!("exec sh -c {} {}{arguments}", quote(&run), quote(name)), input }
}

/// Returns the line that ends the input of `command`, if that is the command of a [`sent`] script for a shell.
#[must_use]
pub fn end_of(command: &str) -> Option<&str> {
    let after = command.strip_prefix("exec ")?.split_once("case $s in *")?.1;
    after.split_once(')').map(|(end, _)| end)
}

/// Returns the interpreter in the first line of the script.
fn interpreter(source: &[u8]) -> String {
    let first = source.split(|byte| *byte == b'\n').next().unwrap_or_default();
    first.strip_prefix(b"#!").map(|line| String::from_utf8_lossy(line).trim().to_owned()).unwrap_or_default()
}

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
const CUT: &str = "echo \"penstock: the script was truncated on its way, and was not run\" >&2";

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "the shells of this machine are the judges")]
mod tests {
    use std::io::Write;
    use std::process::{Command, Output, Stdio};

    use super::*;

    fn run(sent: &Sent, input: &[u8]) -> Output {
        let mut child = Command::new("sh")
            .args(["-c", &sent.command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    fn told(source: &str, arguments: &[&str]) -> (String, Option<i32>) {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let sent = sent(source.as_bytes(), "it's.sh", &arguments, "a1");
        let output = run(&sent, &sent.input);
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    #[test]
    fn script_gets_its_name_its_arguments_and_no_input() {
        let script = "echo \"$0 $# $2\"\ncat\nexit 7";
        assert_eq!(told(script, &["a", "b c"]), ("it's.sh 2 b c\n".to_owned(), Some(7)));
    }

    #[test]
    fn the_end_of_a_sent_script_is_found_in_its_command() {
        let of = |source: &[u8]| sent(source, "s", &["x".to_owned()], "a1").command;
        assert_eq!(end_of(&of(b"echo")), Some("#penstock-end-a1"));
        assert_eq!(end_of(&of(b"#!/bin/bash -e\necho")), Some("#penstock-end-a1"));
        assert_eq!(end_of(&of(b"#!/usr/bin/python3\n")), None);
        assert_eq!(end_of("exec true"), None);
    }

    #[test]
    fn first_line_chooses_what_runs_it() {
        assert_eq!(
            told("#!/bin/bash -e\na=(1 2)\necho ${#a[@]}\nfalse\necho no", &[]),
            ("2\n".to_owned(), Some(1))
        );
        assert_eq!(told("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1])", &["x"]).0, "x\n");
    }

    #[test]
    fn half_a_script_is_not_run() {
        for source in ["echo one\necho two\n", "#!/usr/bin/env python3\nprint('one')\nprint('two')\n"] {
            let sent = sent(source.as_bytes(), "s", &[], "a1");
            let output = run(&sent, &sent.input[..source.len() / 2 + 3]);
            assert_eq!(output.stdout, b"", "{source}");
            assert_eq!(output.status.code(), Some(126));
        }
    }
}
