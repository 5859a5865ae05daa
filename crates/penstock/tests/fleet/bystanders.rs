//! What ends a command on a host reaches nothing else there: a matrix of servers and ways in which a command ends, each
//! server in a PID namespace of its own, among processes that must live. It needs root.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::fleet::{Destination, Fleet, RunResult, told};
use testing::namespace::Namespace;
use testing::shown::Shown;
use testing::sshd::{free_address, keygen, processes, program};
use testing::tools::{self, Root, built, python};
use testing::{eventually, secs};

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It ends.
    Ends,
    /// It may go on, and the run says so.
    SaidToLive,
    /// It is never started.
    NotStarted,
}
use Fate::{Ends, NotStarted, SaidToLive};

/// How a command comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Timeout,
    TimeoutWithInput,
    TimeoutOfScript,
    /// Through the user's `ssh`, on a connection that another command shares.
    TimeoutOnSharedConnection,
    Interrupt,
    InterruptTwice,
    KilledClient,
    KilledClientWithInput,
}

const WAYS: [Way; 8] = [
    Way::Timeout,
    Way::TimeoutWithInput,
    Way::TimeoutOfScript,
    Way::TimeoutOnSharedConnection,
    Way::Interrupt,
    Way::InterruptTwice,
    Way::KilledClient,
    Way::KilledClientWithInput,
];

/// A server, who logs in, and what becomes of a command in each of [`WAYS`].
struct Row {
    server: &'static str,
    user: &'static str,
    fates: [Fate; 8],
}

const ORDINARY: &str = "penstock-test";
const ALL: [Fate; 8] = [Ends; 8];
const NONE: [Fate; 8] = [NotStarted; 8];
/// A server whose process outlives connections: of a client that is gone a command with input hears only the end of that.
const BUT_THE_LAST: [Fate; 8] = [Ends, Ends, Ends, Ends, Ends, Ends, Ends, SaidToLive];

static MATRIX: [Row; 15] = [
    Row { server: "openssh", user: "root", fates: ALL },
    Row { server: "openssh", user: ORDINARY, fates: ALL },
    Row { server: "openssh, forced command that runs what was asked for", user: "root", fates: ALL },
    Row { server: "openssh, forced command of its own", user: "root", fates: [SaidToLive; 8] },
    Row { server: "openssh, ForceCommand internal-sftp", user: "root", fates: NONE },
    Row { server: "openssh, busybox", user: "root", fates: ALL },
    Row { server: "openssh, hidepid", user: ORDINARY, fates: ALL },
    Row { server: "openssh, no proc", user: "root", fates: [SaidToLive; 8] },
    Row { server: "openssh as init", user: "root", fates: ALL },
    Row { server: "dropbear", user: "root", fates: ALL },
    // It signals one process if it is asked, and what that started would live.
    Row { server: "dropbear, slow host", user: "root", fates: ALL },
    Row { server: "asyncssh", user: "root", fates: BUT_THE_LAST },
    Row { server: "asyncssh as init", user: "root", fates: BUT_THE_LAST },
    Row { server: "paramiko", user: "root", fates: BUT_THE_LAST },
    Row { server: "go", user: "root", fates: BUT_THE_LAST },
];

/// All rows at once: they wait for most of the time.
#[test]
fn every_bystander_lives_and_every_command_ends_or_is_said_to_live() {
    if tools::root("makes PID namespaces and logs in as several users") == Root::LeftOut {
        return;
    }
    let rows = MATRIX.iter().map(|row| (row, std::thread::spawn(move || spares_bystanders(row))));
    let rows: Vec<_> = rows.collect();
    let failed = |(row, thread): (&Row, JoinHandle<()>)| {
        thread.join().is_err().then(|| format!("{} as {}", row.server, row.user))
    };
    let failed: Vec<_> = rows.into_iter().filter_map(failed).collect();
    assert!(failed.is_empty(), "see above: {failed:#?}");
}

/// A number of seconds for `sleep` that no other process of this machine has.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{}{count:04}", 5000 + count, std::process::id())
}

fn is_running(sleep: &str) -> bool {
    count(sleep) > 0
}

/// How many processes sleep as long.
fn count(sleep: &str) -> usize {
    processes().iter().filter(|line| line.trim() == format!("sleep {sleep}")).count()
}

#[track_caller]
fn until_it_runs(sleep: &str) {
    eventually("it runs", secs(60), || is_running(sleep).then_some(()));
}

/// Ends it as each row says, with every bystander alive after each way.
fn spares_bystanders(row: &Row) {
    let mut door = Door::open(row);
    let mut bystanders: HashMap<&str, String> = HashMap::new();
    let inside =
        ["a daemon", "a child of init in its session", "another user's session"].map(|who| (who, unique()));
    let [daemon, child, other] = &inside;
    door.namespace.run(&format!(
        "{{ setsid sleep {} & sleep {} & setpriv --reuid=65534 --clear-groups setsid sleep {} & }} >/dev/null 2>&1",
        daemon.1, child.1, other.1
    ));
    bystanders.extend(inside);
    let has_commands = !matches!(row.fates, NONE) && row.server != "openssh, forced command of its own";
    let mut beside = None;
    if has_commands {
        let sleep = unique();
        beside = Some(Running::start(
            &door.fleet,
            &["--timeout", "3600", "-w", "h1", "--", &format!("sleep {sleep}")],
        ));
        bystanders.insert("a command on another connection", sleep);
        let sleep = unique();
        door.share(&sleep);
        bystanders.insert("another command on the connection", sleep);
    }
    for sleep in bystanders.values() {
        until_it_runs(sleep);
    }
    let here = unique();
    let mut local = std::process::Command::new("sleep").arg(&here).spawn().unwrap();
    bystanders.insert("a process of the client's machine", here);
    let mut wrong = Vec::new();
    for (way, fate) in WAYS.into_iter().zip(row.fates) {
        let seen = way.go_where_started(&door, fate);
        if seen.0 != fate {
            wrong.push(format!("{way:?}: {:?} and not {fate:?}: {}", seen.0, seen.1));
        }
        for (who, sleep) in &bystanders {
            assert!(is_running(sleep), "{}, {way:?}: {who} was ended", row.server);
        }
    }
    // A watcher insists with KILL after three seconds: what it reaches is seen when it has ended. One beside each command that
    // goes on stays.
    let goes_on = row.fates.iter().filter(|fate| **fate == SaidToLive).count();
    let stay = goes_on + usize::from(beside.is_some());
    eventually("the watchers of commands that have ended are gone", secs(30), || {
        (door.namespace.count("penstock-watcher") <= stay).then_some(())
    });
    // Files that come and go, and a tunnel with a job, end without a signal to anything on the host.
    door.copies_files(row);
    door.tunnels(row);
    for (who, sleep) in &bystanders {
        assert!(is_running(sleep), "{}: {who} was ended", row.server);
    }
    assert!(wrong.is_empty(), "{}:\n{}", row.server, wrong.join("\n"));
    drop(beside);
    local.kill().unwrap();
    local.wait().unwrap();
}

impl Way {
    /// As [`Self::go`], with a longer limit where a busy machine let the limit end the command before it ran.
    fn go_where_started(self, door: &Door, expected: Fate) -> (Fate, String) {
        let mut limit = 2;
        loop {
            let seen = self.go(door, expected, limit);
            let is_too_short = seen.0 == NotStarted && seen.1.contains("command timed out");
            if !is_too_short || limit > 60 {
                return seen;
            }
            limit *= 2;
        }
    }

    /// Starts a command and ends it so, a way by time after `limit` seconds. Gives what became of it, and what was said.
    /// Where it is not expected to end, it is waited for no longer than the watcher takes that would end it.
    fn go(self, door: &Door, expected: Fate, limit: u32) -> (Fate, String) {
        let sleep = unique();
        let script = door.directory.path().join("script.sh");
        fs::write(&script, format!("sleep {sleep}\ntrue\n")).unwrap();
        // A child of the command, which has to end with it.
        let nested = format!("sh -c 'sleep {sleep}; true'; true");
        let (script, fed) = (script.to_str().unwrap(), format!("cat >/dev/null; sleep {sleep}; true"));
        let limit = if matches!(
            self,
            Self::Interrupt | Self::InterruptTwice | Self::KilledClient | Self::KilledClientWithInput
        ) {
            600
        } else {
            limit
        };
        let limit = limit.to_string();
        let mut arguments = vec!["--timeout", &limit, "-w", "h1"];
        match self {
            Self::TimeoutOfScript => arguments.extend(["--script", script]),
            Self::TimeoutWithInput | Self::KilledClientWithInput => arguments.extend(["--stdin", "--", &fed]),
            Self::TimeoutOnSharedConnection => arguments.extend(["--engine", "openssh", "--", &nested]),
            _ => arguments.extend(["--", &nested]),
        }
        let its_own = door.forced.as_deref().unwrap_or(&sleep);
        let before = count(its_own);
        let running = Running::start(&door.fleet, &arguments);
        let started = eventually("it runs, or the run has ended", secs(60), || {
            let started = count(its_own) > before;
            (started || running.has_ended()).then_some(started)
        });
        let told = match self {
            Self::Interrupt => running.interrupted(),
            Self::InterruptTwice => running.interrupted_twice(),
            Self::KilledClient | Self::KilledClientWithInput => running.killed(&door.namespace),
            _ => running.finish(),
        };
        let said = format!("{:?} {}{}", told.code, told.stdout, told.stderr);
        if !started {
            return (NotStarted, said);
        }
        let is_killed = matches!(self, Self::KilledClient | Self::KilledClientWithInput);
        // A run that was killed has only its record to say so.
        let says_it_may_live = is_killed || said.contains("may still run");
        let limit = Instant::now() + if expected == Ends { secs(60) } else { secs(6) };
        while Instant::now() < limit {
            if count(its_own) == before {
                return (Ends, said);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(says_it_may_live, "{self:?}: it lives, and nothing says so: {said}");
        if is_killed {
            let record = door.fleet.recorded(0);
            assert_eq!(record["result"], "may-have-run", "{record}");
        }
        // It goes away with its namespace.
        (SaidToLive, said)
    }
}

/// `penstock run` under way.
struct Running(Option<Child>);

impl Running {
    fn start(fleet: &Fleet, arguments: &[&str]) -> Self {
        let mut command = fleet.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if arguments.contains(&"--stdin") {
            // A little input, and its end.
            use std::io::Write;
            let _ = child.stdin.take().unwrap().write_all(b"x\n");
        }
        Self(Some(child))
    }

    fn has_ended(&self) -> bool {
        sys::process::has_ended(self.pid().as_raw().cast_unsigned())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.as_ref().unwrap().id().cast_signed())
    }

    fn interrupted(self) -> RunResult {
        let _ = kill(self.pid(), Signal::SIGINT);
        self.finish()
    }

    /// The second signal is sent when the run has told what the first one does: two at once would be one.
    fn interrupted_twice(mut self) -> RunResult {
        let _ = kill(self.pid(), Signal::SIGINT);
        let mut first = Vec::new();
        let stderr = self.0.as_mut().unwrap().stderr.as_mut().unwrap();
        // Byte by byte: what follows is read at the end.
        let mut byte = [0];
        while stderr.read(&mut byte).unwrap() == 1 {
            first.push(byte[0]);
            if first.ends_with(b"\n") && String::from_utf8_lossy(&first).contains("stopping") {
                break;
            }
        }
        let _ = kill(self.pid(), Signal::SIGINT);
        let told = self.finish();
        RunResult { stderr: String::from_utf8_lossy(&first).into_owned() + &told.stderr, ..told }
    }

    /// Killed when each watcher on the host has had an input for two seconds: only of such an input the end means that the
    /// client is gone.
    fn killed(mut self, namespace: &Namespace) -> RunResult {
        eventually("every watcher has had an input for two seconds", secs(60), || {
            let uptime = fs::read_to_string("/proc/uptime").unwrap();
            let now: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
            // In ticks, of which Linux has 100 a second wherever it shows them.
            let is_old = |process: &i32| {
                sys::process::stat(*process).is_none_or(|stat| now * 100.0 > stat.start as f64 + 220.0)
            };
            namespace.processes("penstock-watcher").iter().all(is_old).then_some(())
        });
        self.0.as_mut().unwrap().kill().unwrap();
        self.finish()
    }

    fn finish(mut self) -> RunResult {
        let mut child = self.0.take().unwrap();
        drop(child.stdin.take());
        told(child.wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server in a namespace, and a client with a home that knows it as `h1`.
struct Door {
    namespace: Namespace,
    fleet: Fleet,
    /// What the server says.
    _log: Shown,
    directory: tempfile::TempDir,
    /// What runs there in place of each command that is asked for.
    forced: Option<String>,
    /// The user's `ssh` that shares a connection.
    shared: Option<Child>,
}

impl Door {
    fn open(row: &Row) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["host", "client"] {
            keygen(&path.join(name), &["-t", "ed25519"]);
        }
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let key = fs::read_to_string(path.join("client.pub")).unwrap();
        let forced = (row.server == "openssh, forced command of its own").then(unique);
        let before = match (row.server, &forced) {
            (_, Some(sleep)) => format!("command=\"sleep {sleep}\" "),
            ("openssh, forced command that runs what was asked for", _) => {
                "command=\"sh -c \\\"$SSH_ORIGINAL_COMMAND\\\"\" ".to_owned()
            }
            _ => String::new(),
        };
        fs::write(path.join("authorized_keys"), format!("{before}{key}")).unwrap();
        let (mut address, mut port) = free_address();
        let log = Shown(path.join("log"));
        let (kind, as_init) = match row.server.strip_suffix(" as init") {
            Some(kind) => (kind, true),
            None => (row.server.split(',').next().unwrap(), false),
        };
        let command = server(kind, row.server, path, address, port);
        let namespace = if as_init {
            Namespace::of(&["sh", "-c", &format!("exec {command}")])
        } else {
            let mut namespace = Namespace::new();
            prepare(&namespace, row.server, path);
            // As a manager of services starts it: in a session of its own, below init.
            namespace.start(&format!("setsid sh -c {}", quote(&format!("exec {command}"))));
            namespace
        };
        if !matches!(kind, "openssh" | "dropbear") {
            address = Ipv4Addr::LOCALHOST;
            port = eventually("the server says its port", secs(60), || {
                fs::read_to_string(path.join("port")).ok()?.trim().parse().ok()
            });
        }
        eventually("the server listens", secs(60), || TcpStream::connect((address, port)).ok());
        let fleet = Fleet::of_places(&[Destination {
            address,
            port,
            user: row.user,
            host_key: path.join("host.pub"),
            client_key: &path.join("client"),
        }]);
        fleet.configure(&format!("  ControlPath {}/shared", path.display()));
        Self { namespace, fleet, _log: log, directory, forced, shared: None }
    }

    /// Runs a command on a connection that others can share, as the user's `ssh` does.
    fn share(&mut self, sleep: &str) {
        // Without a command: asyncssh at times loses the exit status of one, and answers 255.
        let master =
            ["-f", "-N", "-o", "ControlMaster=yes", "-o", "ControlPersist=600", "-o", "BatchMode=yes", "h1"];
        let begun = self.fleet.ssh(&master).output().unwrap();
        assert!(begun.status.success(), "{}", String::from_utf8_lossy(&begun.stderr));
        let mut command = self.fleet.ssh(&["-o", "BatchMode=yes", "h1", &format!("sleep {sleep}")]);
        self.shared = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    /// One copy that is given up at once, and a whole one.
    fn copies_files(&self, row: &Row) {
        let file = self.directory.path().join("file");
        fs::write(&file, vec![b'x'; 4 << 20]).unwrap();
        let target = format!("/tmp/{}", unique());
        let arguments = ["-w", "h1", file.to_str().unwrap(), &target];
        let mut put = self.fleet.penstock("put", &arguments);
        let put = put.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = kill(Pid::from_raw(put.id().cast_signed()), Signal::SIGINT);
        put.wait_with_output().unwrap();
        let whole = told(self.fleet.penstock("put", &arguments).output().unwrap());
        // Their examples have no files.
        let has_files = !["go", "paramiko"].contains(&row.server);
        let can_copy = has_files && !row.server.contains("forced command");
        assert_eq!(whole.code == Some(0), can_copy, "{}: {whole:?}", row.server);
        let _ = fs::remove_file(target);
    }

    fn tunnels(&self, row: &Row) {
        let (sleep, config) = (unique(), self.directory.path().join("tunnel.toml"));
        let text = "[tunnel.t]\nhost = \"h1\"\n[tunnel.t.forward.f]\nlisten = \"127.0.0.1:0\"\nconnect = \"127.0.0.1:9\"\ncheck = \"none\"\n";
        fs::write(&config, text).unwrap();
        let arguments = ["with", "t", "--config", config.to_str().unwrap(), "--", "sleep", &sleep];
        let mut command = self.fleet.penstock("tunnel", &arguments);
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        let mut tunnel = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = eventually("the job runs, or the tunnel has ended", secs(60), || {
            let runs = is_running(&sleep);
            (runs || tunnel.try_wait().unwrap().is_some()).then_some(runs)
        });
        let _ = kill(Pid::from_raw(tunnel.id().cast_signed()), Signal::SIGTERM);
        let ended = told(tunnel.wait_with_output().unwrap());
        assert!(begun, "{}: {ended:?}", row.server);
        eventually("the job has ended", secs(30), || (!is_running(&sleep)).then_some(()));
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.fleet.ssh(&["-O", "exit", "h1"]).output();
        if let Some(shared) = &mut self.shared {
            let _ = shared.kill();
            let _ = shared.wait();
        }
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The command line of a server.
fn server(kind: &str, name: &str, path: &Path, address: Ipv4Addr, port: u16) -> String {
    let shown = path.display();
    let own = format!("{}/tests/servers", env!("CARGO_MANIFEST_DIR"));
    match kind {
        "openssh" => {
            let more = if name.ends_with("internal-sftp") { "ForceCommand internal-sftp\n" } else { "" };
            let config = format!(
                "{more}ListenAddress {address}\nPort {port}\nHostKey {shown}/host\nAuthorizedKeysFile {shown}/authorized_keys\n\
                 PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
                 MaxStartups 200\nSubsystem sftp internal-sftp\nPrintMotd no\nSetEnv SHLVL=1\n"
            );
            fs::write(path.join("sshd_config"), config).unwrap();
            fs::create_dir_all("/run/sshd").unwrap();
            format!("{} -D -e -f {shown}/sshd_config 2>{shown}/log", program("sshd").display())
        }
        "dropbear" => {
            let convert = std::process::Command::new(program("dropbearconvert"))
                .args(["openssh", "dropbear"])
                .args([path.join("host"), path.join("dropbear-host")])
                .output()
                .unwrap();
            assert!(convert.status.success(), "{}", String::from_utf8_lossy(&convert.stderr));
            format!(
                "{} -F -E -p {address}:{port} -r {shown}/dropbear-host 2>{shown}/log",
                program("dropbear").display()
            )
        }
        "asyncssh" | "paramiko" => {
            let python = python(kind);
            format!(
                "{} {own}/{kind}_server.py {shown}/host {shown}/authorized_keys >{shown}/port 2>{shown}/log",
                python.display()
            )
        }
        "go" => format!(
            "{} {shown}/host {shown}/authorized_keys >{shown}/port 2>{shown}/log",
            built("ssh-server").display()
        ),
        other => panic!("{other}"),
    }
}

/// Makes the machine in the namespace what the row says.
fn prepare(namespace: &Namespace, name: &str, path: &Path) {
    let shown = path.display();
    match name {
        // It takes keys from the home directory only.
        "dropbear" | "dropbear, slow host" => {
            fs::create_dir(path.join("dot-ssh")).unwrap();
            fs::copy(path.join("authorized_keys"), path.join("dot-ssh/authorized_keys")).unwrap();
            for file in ["dot-ssh", "dot-ssh/authorized_keys"] {
                fs::set_permissions(path.join(file), std::os::unix::fs::PermissionsExt::from_mode(0o700))
                    .unwrap();
            }
            fs::create_dir_all("/root/.ssh").unwrap();
            namespace.run(&format!("mount --bind {shown}/dot-ssh /root/.ssh"));
            if name == "dropbear, slow host" {
                let grep = fs::canonicalize(program("grep")).unwrap();
                fs::copy(&grep, path.join("grep")).unwrap();
                let slow = format!("#!/bin/sh\n[ \"$1\" = -ls ] && sleep 1.7\nexec {shown}/grep \"$@\"\n");
                tools::executable(&path.join("slow"), &slow);
                namespace.run(&format!("mount --bind {shown}/slow {}", grep.display()));
            }
        }
        "openssh, busybox" => {
            let passwd = fs::read_to_string("/etc/passwd").unwrap();
            let passwd: String = passwd
                .lines()
                .map(|line| match line.strip_prefix("root:") {
                    Some(rest) => format!("root:{}:/bin/sh\n", rest.rsplit_once(':').unwrap().0),
                    None => format!("{line}\n"),
                })
                .collect();
            fs::write(path.join("passwd"), passwd).unwrap();
            let busybox = program("busybox");
            let mut script = format!("mount --bind {shown}/passwd /etc/passwd\n");
            for applet in ["sh", "grep", "tr", "sleep"] {
                let real = fs::canonicalize(program(applet)).unwrap();
                script.push_str(&format!("mount --bind {} {}\n", busybox.display(), real.display()));
            }
            // Init keeps the shell that it has.
            namespace.run(&script);
        }
        "openssh, hidepid" => namespace.run("mount -o remount,hidepid=2 /proc"),
        "openssh, no proc" => namespace.run("mount -t tmpfs none /proc"),
        _ => {}
    }
}
