//! What `penstock run` shows: equal outputs once, the progress line on a real terminal; and what it leaves for the audit.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use testing::fleet::{Fleet, told};
use testing::server::{binary, clear_environment, run_to_end};
use testing::sshd::{Sshd, program};
use testing::{eventually, secs};

/// Does `odd` on the host that comes first and `even` on the others: all names lead to one sshd.
fn odd_one(fleet: &Fleet, odd: &str, even: &str) -> String {
    let mark = fleet.home.path().join("odd");
    let _ = fs::remove_dir(&mark);
    format!("if mkdir {} 2>/dev/null; then {odd}; else {even}; fi", mark.display())
}

#[test]
fn equal_outputs_are_shown_once_with_their_hosts_and_every_ending() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ["native", "openssh"] {
        let command = odd_one(&fleet, "echo 5.10; echo old >&2; exit 3", "echo 6.1");
        // One after the other, so that the first is h1.
        let told = fleet.run(&["--engine", engine, "-p", "1", "-b", "-w", "h[1-4],away", &command]);
        let rule = "---------------";
        assert_eq!(
            told.stdout,
            format!(
                "{rule}\nh[2-4] (3)\n{rule}\n6.1\n{rule}\naway (1)\n{rule}\n=: connection-refused\n\
                 {rule}\nh1 (1)\n{rule}\n5.10\n=> old\n=: exit 3\n"
            ),
            "{told:?}"
        );
        assert_eq!(told.code, Some(3), "{told:?}");
        let command = odd_one(&fleet, "printf '1\\n2\\nx\\n'; exit 3", "printf '1\\n2\\n3\\n'");
        let told = fleet.run(&["--engine", engine, "-p", "1", "--diff", "-w", "h[1-4]", &command]);
        assert_eq!(
            told.stdout,
            format!(
                "{rule}\nh[2-4] (3)\n{rule}\n1\n2\n3\n\
                 {rule}\nh1 (1): the difference\n{rule}\n@@ -1,3 +1,4 @@\n 1\n 2\n-3\n+x\n+=: exit 3\n"
            ),
            "{told:?}"
        );
    }
}

#[test]
fn name_of_a_host_in_its_output_is_masked_only_if_that_is_asked_for() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for (how, shown) in [
        (&["-b"][..], "h[1-2] (2)\n---------------\nh1\n"),
        (&["--diff"], "h[1-2] (2)\n---------------\nh1\n"),
        (&["--mask", "ip"], "h[1-2] (2)\n---------------\nh1\n"),
        (&["--mask", "host"], "h2 (1)\n---------------\nh1\n"),
    ] {
        let told = fleet.run(&[how, &["-w", "h[1-2]", "echo h1"]].concat());
        assert!(told.stdout.contains(shown), "{how:?}: {told:?}");
        assert_eq!(told.stdout.contains("(2)"), !how.contains(&"host"), "{how:?}: {told:?}");
    }
}

#[test]
fn folding_goes_with_waves_and_files_and_says_with_what_it_does_not() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let directory = fleet.home.path().join("out");
    let directory = directory.to_str().unwrap();
    let waves = ["-b", "--waves", "1,all", "--pause=0.01", "-o", directory, "-w", "h[1-3]", "echo same"];
    let told = fleet.run(&waves);
    let heads: Vec<&str> = told.stdout.lines().filter(|line| line.starts_with('h')).collect();
    assert_eq!(heads, ["h1 (1)", "h[1-3] (3)"], "a look at the pause, and everything at the end: {told:?}");
    assert_eq!(fs::read_to_string(format!("{directory}/h2.out")).unwrap(), "same\n");
    // What is masked makes no difference to the waves either.
    let counted = format!("echo $$ >>{0}/n; echo run $(wc -l <{0}/n)", fleet.home.path().display());
    let stop = ["--waves", "2,all", "--stop-if", "differs", "-p", "1", "-w", "h[1-4]", &counted];
    let told = fleet.run(&stop);
    assert!(told.stderr.contains("stopped after 2 of 4 hosts by differs"), "{told:?}");
    let told = fleet.run(&[&["--mask", "number"], stop.as_slice()].concat());
    assert!(told.stdout.contains("h[1-4] (4)\n---------------\nrun <number>\n"), "{told:?}");
    for with in ["--json", "-f"] {
        let told = fleet.run(&["-b", with, "-w", "h1", "true"]);
        assert_eq!(told.code, Some(2), "{told:?}");
        assert!(told.stderr.contains("cannot be used with"), "{told:?}");
    }
}

#[test]
fn line_that_is_cut_for_its_length_is_marked_where_it_continues() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let long = "head -c 70000 /dev/zero | tr '\\0' x; echo; echo next";
    for (how, before) in [("-f", "h1 -> "), ("-b", "")] {
        let told = fleet.run(&[how, "-w", "h1", long]);
        let lines: Vec<&str> = told.stdout.lines().filter(|line| line.contains('x')).collect();
        let rest = format!("{before}(continued) {}", "x".repeat(70_000 - 65_536));
        assert_eq!(
            lines,
            [format!("{before}{}", "x".repeat(65_536)), rest, format!("{before}next")],
            "{how}"
        );
    }
}

#[test]
fn output_beyond_what_is_kept_is_compared_all_the_same_and_said() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let long = "head -c 9000000 /dev/zero | tr '\\0' x | fold -w 99";
    let command = odd_one(&fleet, &format!("{long}; echo end"), &format!("{long}; echo End"));
    let told = fleet.run(&["-p", "1", "-b", "-w", "h[1-2]", &command]);
    let cut: Vec<&str> = told.stdout.lines().filter(|line| line.starts_with("=: ")).collect();
    assert_eq!(cut.len(), 2, "two groups, for they differ at the end: {cut:?}");
    assert!(cut[0].ends_with("bytes more of standard output were compared, and are not kept"), "{cut:?}");
    assert!((2 * 8_300_000..2 * (8 << 20) + 1000).contains(&told.stdout.len()), "{}", told.stdout.len());
}

#[test]
fn audit_knows_the_key_exchange_after_a_run() {
    let sshd = Sshd::with("KexAlgorithms ecdh-sha2-nistp256\n");
    let fleet = Fleet::of(&sshd);
    let run = fleet.run(&["-w", "h1", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let mut audit = Command::new(binary());
    clear_environment(&mut audit);
    audit.args(["host", "audit"]).stdin(Stdio::null());
    for (name, place) in [("HOME", ""), ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")] {
        audit.env(name, fleet.home.path().join(place));
    }
    let audit = told(run_to_end(&mut audit, secs(60)));
    assert!(audit.stdout.contains("ecdh-sha2-nistp256"), "{audit:?}");
}

#[test]
fn an_exclusion_that_leaves_a_host_in_is_said_and_no_other() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let (none, one) =
        ("note: -x h33: none of these hosts is in the set\n", "note: -x h2,h33: not in the set: h33\n");
    for (exclude, hosts, note) in [
        ("h33", 3, Some(none)),
        ("h2,h33", 2, Some(one)),
        ("h2", 2, None),
        ("h[2-3]", 1, None),
        ("h*3", 2, None),
    ] {
        let told = fleet.run(&["-w", "h[1-3]", "-x", exclude, "echo ran"]);
        assert_eq!((told.code, told.stdout.matches("-> ran").count()), (Some(0), hosts), "{told:?}");
        assert_eq!(
            told.stderr.lines().find(|line| line.starts_with("note: ")),
            note.map(str::trim_end),
            "{told:?}"
        );
    }
}

/// A program on a terminal of its own: what it writes there, and keys for it.
struct Screen {
    child: std::process::Child,
    seen: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Screen {
    fn start(run: &Command) -> Self {
        Self::start_before(run, "")
    }

    /// Starts it in a shell that goes on with `then`.
    fn start_before(run: &Command, then: &str) -> Self {
        let words = std::iter::once(run.get_program()).chain(run.get_args());
        let quoted: Vec<String> =
            words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"))).collect();
        let mut script = Command::new(program("script"));
        clear_environment(&mut script);
        script.args(["-q", "-e", "-f", "-E", "never", "-c", &(quoted.join(" ") + then), "/dev/null"]);
        script.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("SHELL", "/bin/sh");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (seen, mut from) = (Arc::new(Mutex::new(Vec::new())), child.stdout.take().unwrap());
        let writes = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                writes.lock().unwrap().extend_from_slice(&piece[..count]);
            }
        });
        Self { child, seen, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn wait_for(&self, part: &str) {
        eventually(part, secs(30), || self.text().contains(part).then_some(()));
    }

    fn press(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// The exit status, and the lines as they stand on the terminal at the end.
    fn end(mut self) -> (Option<i32>, Vec<String>) {
        let status = eventually("it ends", secs(60), || self.child.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        (status.code(), self.text().split('\n').map(standing).collect())
    }
}

/// What is left of a line after carriage returns and erasures.
fn standing(line: &str) -> String {
    let (mut cells, mut column) = (Vec::<char>::new(), 0);
    let mut signs = line.chars().peekable();
    while let Some(sign) = signs.next() {
        match sign {
            '\r' => column = 0,
            '\u{1b}' => {
                let code: String =
                    std::iter::from_fn(|| signs.next_if(|sign| !sign.is_alphabetic())).collect();
                match (code.as_str(), signs.next()) {
                    ("[", Some('K')) => cells.truncate(column),
                    (_, Some('m')) => {}
                    other => panic!("{other:?} in {line:?}"),
                }
            }
            sign => {
                cells.resize(cells.len().max(column + 1), ' ');
                cells[column] = sign;
                column += 1;
            }
        }
    }
    cells.into_iter().collect()
}

#[test]
fn terminal_shows_whole_lines_around_the_progress_and_enter_tells_who_runs() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let gate = fleet.home.path().join("gate");
    // Half a line, then a wait for the gate: progress is drawn many times meanwhile.
    let command = format!(
        "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i is whole; done; printf half; \
         until [ -e {} ]; do sleep 0.1; done; echo and whole",
        gate.display()
    );
    let mut screen = Screen::start(&fleet.command(&["-w", "h[1-3]", &command]));
    for host in ["h1", "h2", "h3"] {
        screen.wait_for(&format!("{host} \u{1b}[32m->\u{1b}[0m line 300 is whole"));
    }
    screen.wait_for("3 running");
    screen.press("\n");
    for host in ["h1", "h2", "h3"] {
        screen.wait_for(&format!("  {host}: run for "));
    }
    fs::write(&gate, "").unwrap();
    let (status, lines) = screen.end();
    assert_eq!(status, Some(0), "{lines:?}");
    for host in ["h1", "h2", "h3"] {
        let said: Vec<&str> =
            lines.iter().filter_map(|line| line.strip_prefix(&format!("{host} -> "))).collect();
        let mut expected: Vec<String> = (1..=300).map(|number| format!("line {number} is whole")).collect();
        expected.push("halfand whole".to_owned());
        assert_eq!(said, expected, "{host}");
    }
    let others: Vec<&String> = lines.iter().filter(|line| !line.contains(" -> ")).collect();
    let fits = |line: &str| {
        let starts = ["3 hosts: 3 ok", "h[1-3] are one machine, or clones: "];
        line.is_empty() || line.contains(": run for ") || starts.iter().any(|start| line.starts_with(start))
    };
    assert!(others.iter().all(|line| fits(line)), "{others:?}");
    assert_eq!(others.iter().filter(|line| line.contains(": run for ")).count(), 3, "{others:?}");
}

#[test]
fn lines_that_were_pasted_with_the_command_are_left_for_the_shell() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let gate = fleet.home.path().join("gate");
    let command = format!("echo begun; until [ -e {} ]; do sleep 0.1; done", gate.display());
    let then = "; read -r one; read -r two; echo \"the shell has <$one> and <$two>\"";
    let mut screen = Screen::start_before(&fleet.command(&["-w", "h1", &command]), then);
    screen.wait_for("1 running");
    screen.press("\n");
    screen.wait_for("  h1: run for ");
    screen.press("first line\nsecond line\n");
    let waits = "typed text waits for the shell: Enter shows nothing until the run has ended";
    screen.wait_for(waits);
    // The keyboard is looked at several times while the line of the progress is drawn so often.
    let shown = screen.text().len();
    eventually("the progress goes on", secs(30), || (screen.text().len() > shown + 500).then_some(()));
    fs::write(&gate, "").unwrap();
    let (status, lines) = screen.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert!(lines.iter().any(|line| line == "the shell has <first line> and <second line>"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.ends_with(waits)).count(), 1, "{lines:?}");
}

/// A pasted line must not start a wave.
#[test]
fn a_pause_is_ended_by_enter_and_by_no_other_line() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let mut screen =
        Screen::start(&fleet.command(&["-w", "h[1-2]", "--waves", "1,all", "--pause", "echo ran"]));
    screen.wait_for("Enter");
    screen.press("uptime\n");
    screen.wait_for("only Enter by itself goes on");
    assert_eq!(screen.text().matches("ran").count(), 1, "{}", screen.text());
    screen.press("\n");
    let (status, lines) = screen.end();
    assert_eq!(
        (status, lines.iter().filter(|line| line.ends_with("-> ran")).count()),
        (Some(0), 2),
        "{lines:?}"
    );
}

#[test]
fn passphrase_is_typed_in_peace() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let phrase = "open sesame ".repeat(20);
    let locked = Command::new(program("ssh-keygen"))
        .args(["-q", "-p", "-P", "", "-N", &phrase, "-f"])
        .arg(&sshd.client_key)
        .status()
        .unwrap();
    assert!(locked.success());
    let mut screen = Screen::start(&fleet.command(&["-w", "h[1-3]", "echo in"]));
    eventually("a passphrase is asked", secs(30), || screen.text().trim_end().ends_with(':').then_some(()));
    let asked = screen.text();
    // Each key by itself: another reader would get some of them.
    phrase.chars().for_each(|key| screen.press(&key.to_string()));
    screen.press("\n");
    let (status, lines) = screen.end();
    assert_eq!(status, Some(0), "no key went to another reader: {lines:?}");
    assert_eq!(lines.iter().filter(|line| line.contains("-> in")).count(), 3, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.contains("assphrase")).count(), 1, "{asked:?}: {lines:?}");
}
