//! Finds the processes that a run has started, also after the run was killed, by their environment. A process is
//! signalled only if the run has noted it, or if it descends from a noted process, as its parents, or the session or
//! process group of its birth, prove. An environment alone proves nothing: programs copy it.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid};
use sys::process::{self, Process, ProcessId, ProcessState};

use super::awake::within;
use super::place::private_directory;
use super::say::Say;

/// A process that started just when its parent ended cannot be proved. Most of these, such as the `sleep` of a script,
/// end by themselves within this time.
const UNPROVED: Duration = Duration::from_secs(1);

/// Environment variables: the name of the run (`RUN`) and of the step (`STEP`).
pub(crate) const RUN: &str = "TUNNEL_RUN";
pub(crate) const STEP: &str = "TUNNEL_STEP";

/// The step that started a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Engine,
    Mount,
    Job,
}

impl Step {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Mount => "mount",
            Self::Job => "job",
        }
    }

    /// Name of the step in messages.
    fn named(self) -> &'static str {
        match self {
            Self::Engine => "ssh",
            Self::Mount => "mount command",
            Self::Job => "job",
        }
    }
}

#[derive(Debug)]
pub(crate) struct RunProcesses {
    /// Private directory of the run, which has the file of noted processes.
    own: PathBuf,
    run: String,
}

/// Processes of a step that still run.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Processes that the run is proved to have started.
    pub(crate) proved: Vec<ProcessId>,
    /// Processes with the names of run and step in their environment, but without any other proof. Never signalled.
    pub(crate) unproved: Vec<i32>,
}

impl RunProcesses {
    pub(crate) fn new(own: &Path, run: &str) -> Self {
        Self { own: own.to_owned(), run: run.to_owned() }
    }

    /// Name of the run in the environment of its processes.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Notes a process that was just started, so that the next `penstock tunnel` can prove after a crash that this run
    /// started it. Without the note the next `penstock tunnel` names the process and does not signal it.
    pub(crate) fn note(&self, step: Step, process: &Process) {
        if let Some(identity) = process.id()
            && let Some(stat) = process::stat(identity.process)
        {
            let _ = self.write(step, identity, &stat);
        }
    }

    /// Runs `doing`, which may leave a daemon without its session and its parent, as helpers of file systems do. The
    /// daemon becomes a child of this process (PR_SET_CHILD_SUBREAPER), and is noted.
    pub(crate) async fn noting_daemons<T>(&self, step: Step, doing: impl Future<Output = T>) -> T {
        let adopting = Adopting::begin();
        let done = doing.await;
        let own = std::process::id().cast_signed();
        let noted = self.read();
        for (process, stat) in self.all(step).filter(|(_, stat)| stat.parent == own) {
            let identity = ProcessId { process, start: stat.start };
            // A noted process that still runs is waited for by the code that started it.
            if noted.iter().all(|noted| noted.identity != identity) {
                let _ = self.write(step, identity, &stat);
                lock(&ADOPTED).push(identity);
            }
        }
        drop(adopting);
        done
    }

    /// Finds the processes of a step that still run, except those that cleared their environment.
    pub(crate) fn left(&self, step: Step) -> Left {
        self.left_beside(step, &[])
    }

    /// [`Self::left`], with processes that are proved already.
    fn left_beside(&self, step: Step, proved: &[ProcessId]) -> Left {
        let noted: Vec<_> = self.read().into_iter().filter(|noted| noted.step == step.word()).collect();
        let is_known = |one: ProcessId| proved.contains(&one) || noted.iter().any(|it| it.identity == one);
        let mut left = Left::default();
        for (process, stat) in self.all(step) {
            let identity = ProcessId { process, start: stat.start };
            if noted.iter().any(|noted| noted.can_only_be_descendant(&stat))
                || parents(identity).any(is_known)
            {
                left.proved.push(identity);
            } else {
                left.unproved.push(process);
            }
        }
        // `all` leaves zombies out, so adopted zombies are reaped first.
        reap_adopted();
        left
    }

    /// Sends SIGTERM to the proved processes and waits. Returns those that still run.
    pub(crate) async fn end(&self, step: Step, limit: Duration) -> Left {
        let proved = self.signal(step, Signal::SIGTERM);
        self.gone(step, &proved, limit).await
    }

    /// Ends the proved processes, with SIGKILL after 3 s. Called only when their file system is not mounted any more.
    pub(crate) async fn kill_left(&self, step: Step) -> Left {
        let left = self.end(step, Duration::from_secs(3)).await;
        if left.proved.is_empty() {
            return left;
        }
        for identity in &left.proved {
            send(*identity, Signal::SIGKILL);
        }
        self.gone(step, &left.proved, Duration::from_secs(3)).await
    }

    /// Waits until no proved process runs. A process stays proved after its parent has ended.
    async fn gone(&self, step: Step, proved: &[ProcessId], limit: Duration) -> Left {
        // If this process is stopped (SIGSTOP), the others usually are too.
        let waited = async {
            let mut unproved_since = None;
            loop {
                let left = self.left_beside(step, proved);
                if left.proved.is_empty() {
                    let since = *unproved_since.get_or_insert_with(Instant::now);
                    if left.unproved.is_empty() || since.elapsed() >= UNPROVED {
                        return left;
                    }
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        };
        match within(limit, waited).await {
            Ok(left) => left,
            Err(_) => self.left_beside(step, proved),
        }
    }

    fn signal(&self, step: Step, signal: Signal) -> Vec<ProcessId> {
        let proved = self.left(step).proved;
        for identity in &proved {
            send(*identity, signal);
        }
        proved
    }

    /// All processes but this one with the names of run and step in their environment.
    fn all(&self, step: Step) -> impl Iterator<Item = (i32, process::Stat)> {
        let own = std::process::id().cast_signed();
        process::all().filter(move |process| *process != own).filter_map(move |process| {
            let stat = process::stat(process).filter(|stat| stat.life == ProcessState::Runs)?;
            let is_it = process::has_variable(process, RUN, &self.run)
                && process::has_variable(process, STEP, step.word());
            // The process id was not reused while the environment was read.
            let same = process::stat(process).is_some_and(|now| now.start == stat.start);
            (is_it && same).then_some((process, stat))
        })
    }

    fn path(&self) -> PathBuf {
        self.own.join("processes")
    }

    fn write(&self, step: Step, identity: ProcessId, stat: &process::Stat) -> io::Result<()> {
        private_directory(&self.own).map_err(io::Error::other)?;
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        let ProcessId { process, start } = identity;
        let noted = Noted {
            step: step.word().to_owned(),
            identity: ProcessId { process, start },
            group: group_of_its_own(process, stat),
            session: stat.session,
        };
        let line = noted.line();
        let mut file = options.open(self.path())?;
        // A run that connects again and again starts an ssh each time, so the file grows.
        if file.metadata()?.len() > MOST_NOTED {
            file = self.shorten()?;
        }
        file.write_all(line.as_bytes())
    }

    /// Rewrites the notes, without processes that have ended and whose session has no process left.
    fn shorten(&self) -> io::Result<File> {
        let sessions: HashSet<_> =
            process::all().filter_map(process::stat).map(|stat| stat.session).collect();
        let is_needed =
            |noted: &Noted| Process::find(noted.identity).is_some() || sessions.contains(&noted.session);
        let lines: String = self.read().iter().filter(|noted| is_needed(noted)).map(Noted::line).collect();
        let next = self.own.join("processes.next");
        let _ = fs::remove_file(&next);
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&next)?;
        file.write_all(lines.as_bytes())?;
        fs::rename(&next, self.path())?;
        Ok(file)
    }

    /// Reads the notes. Empty if the file does not belong to this user.
    fn read(&self) -> Vec<Noted> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let open = OpenOptions::new().read(true).custom_flags(flags.bits()).open(self.path());
        let mut text = String::new();
        let Ok(file) = open else { return Vec::new() };
        let is_ours = |about: fs::Metadata| {
            about.is_file() && about.uid() == geteuid().as_raw() && about.mode() & 0o022 == 0
        };
        if !file.metadata().is_ok_and(is_ours) || file.take(LONGEST).read_to_string(&mut text).is_err() {
            return Vec::new();
        }
        text.lines().filter_map(Noted::parse).collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Noted {
    step: String,
    identity: ProcessId,
    /// The process group, if only the run and its descendants are in it.
    group: Option<i32>,
    session: i32,
}

/// The process group of a process, if the process itself or this run leads it. The group of a script, for example, also
/// contains other commands of the script.
fn group_of_its_own(process: i32, stat: &process::Stat) -> Option<i32> {
    let run = std::process::id().cast_signed();
    [run, process].contains(&stat.group).then_some(stat.group)
}

impl Noted {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let step = words.next()?.to_owned();
        let (process, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (group, session): (i32, i32) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let group = (group > 0).then_some(group);
        let identity = ProcessId { process, start };
        (words.next().is_none() && process > 1).then_some(Self { step, identity, group, session })
    }

    fn line(&self) -> String {
        let ProcessId { process, start } = self.identity;
        format!("{} {process} {start} {} {}\n", self.step, self.group.unwrap_or(0), self.session)
    }

    /// Whether only descendants of the run can be in the session or group of this process. A command that began with a
    /// session of its own shares the session with its descendants only (setsid(2)). A job stays in the group of the
    /// run: no other process is born into a group that a shell made for the run.
    fn can_only_be_descendant(&self, stat: &process::Stat) -> bool {
        let ProcessId { process, start } = self.identity;
        // The process id may have been reused by the leader of another session.
        let given_again = process::stat(process).is_some_and(|stat| stat.start != start);
        let leads = self.session == process && !given_again;
        stat.session == self.session
            && stat.start >= start
            && (leads || Some(stat.group) == self.group && !given_again)
    }
}

struct Adopting;

impl Adopting {
    fn begin() -> Option<Self> {
        nix::sys::prctl::set_child_subreaper(true).ok().map(|()| Self)
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        let _ = nix::sys::prctl::set_child_subreaper(false);
    }
}

/// Daemons that this process has adopted; no other code waits for them.
static ADOPTED: Mutex<Vec<ProcessId>> = Mutex::new(Vec::new());

fn reap_adopted() {
    lock(&ADOPTED).retain(|ProcessId { process, start }| {
        // The process id is not reused before the wait, which only this function does.
        process::stat(*process).is_some_and(|stat| stat.start == *start)
            && matches!(
                waitpid(Pid::from_raw(*process), Some(WaitPidFlag::WNOHANG)),
                Ok(WaitStatus::StillAlive)
            )
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Signals a proved process, which may have ended since it was found.
fn send(identity: ProcessId, signal: Signal) {
    if let Some(process) = Process::find(identity) {
        process.signal(signal);
    }
}

fn parents(of: ProcessId) -> impl Iterator<Item = ProcessId> {
    let parent = |child: &ProcessId| {
        let process = process::stat(child.process).filter(|stat| stat.start == child.start)?.parent;
        let start = process::stat(process)?.start;
        Some(ProcessId { process, start })
    };
    std::iter::successors(Some(of), parent).take(MOST_PARENTS)
}

impl Left {
    /// Reports the processes that are not signalled because nothing proves that the run has started them.
    pub(crate) fn tell(&self, step: Step, say: &Say) {
        for process in &self.unproved {
            say(&format!(
                "{} is not signalled, and keeps running: it has this tunnel's {RUN}, but it is not proved that the tunnel started it as its {}",
                named(*process),
                step.named()
            ));
        }
    }
}

/// Description of a process in messages.
pub(crate) fn named(process: i32) -> String {
    let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    match name.trim_end() {
        "" => format!("process {process}"),
        name => format!("process {process} ({})", text::terminal::escaped(name, 16)),
    }
}

/// A file of notes with more bytes is rewritten without the notes that are not needed any more.
const MOST_NOTED: u64 = 64 << 10;
/// Limit of the bytes that are read of the notes.
const LONGEST: u64 = 1 << 20;
const MOST_PARENTS: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// The name of a run that no other process of this machine has: a test that runs twice at once must not find the
    /// processes of the other.
    fn unique(run: &str) -> String {
        format!("{run}{}", std::process::id())
    }

    fn command(run: &str, step: Step) -> Command {
        let mut command = Command::new("/bin/sh");
        command.env(RUN, run).env(STEP, step.word());
        command
    }

    fn number(child: &Child) -> i32 {
        child.id().cast_signed()
    }

    /// Starts a shell command that is an `exec`, and waits for execve(2): until then the process has no environment to
    /// read.
    fn spawn_exec(command: &mut Command) -> Child {
        let child = command.spawn().unwrap();
        let read = |name: &str| fs::read(format!("/proc/{}/{name}", child.id())).unwrap();
        let runs = || read("cmdline").starts_with(b"sleep") && !read("environ").is_empty();
        while !runs() {
            std::thread::yield_now();
        }
        child
    }

    #[tokio::test]
    async fn process_with_a_copied_environment_is_named_and_never_signalled() {
        let (own, name) = (tempfile::tempdir().unwrap(), unique("copied"));
        let started = RunProcesses::new(&own.path().join("own"), &name);
        let mut bystander = spawn_exec(command(&name, Step::Mount).args(["-c", "exec sleep 600"]));
        let mut run = command(&name, Step::Mount);
        run.args(["-c", "sleep 600 & exec sleep 600"]);
        let (mut ours, session) = process::spawn(&mut run).unwrap();
        started.note(Step::Mount, session.leader());
        let left = started.kill_left(Step::Mount).await;
        assert_eq!(left.unproved, [number(&bystander)]);
        assert!(left.proved.is_empty(), "{left:?}");
        ours.wait().unwrap();
        assert_eq!(bystander.try_wait().unwrap(), None, "it was signalled");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }

    #[tokio::test]
    async fn daemon_that_left_its_session_and_its_parent_is_still_proved() {
        let (own, name) = (tempfile::tempdir().unwrap(), unique("daemon"));
        let started = RunProcesses::new(&own.path().join("own"), &name);
        let mut run = command(&name, Step::Mount);
        run.args(["-c", "setsid sleep 600 & while [ \"$(cat /proc/$!/comm)\" != sleep ]; do :; done"]);
        let ended = started.noting_daemons(Step::Mount, async {
            let (mut child, session) = process::spawn(&mut run).unwrap();
            started.note(Step::Mount, session.leader());
            child.wait().unwrap()
        });
        assert!(ended.await.success());
        let left = started.left(Step::Mount);
        let ([daemon], []) = (left.proved.as_slice(), left.unproved.as_slice()) else { panic!("{left:?}") };
        assert_eq!(
            process::stat(daemon.process).unwrap().session,
            daemon.process,
            "it has a session of its own"
        );
        // The process after a crash has only the notes.
        let left = RunProcesses::new(&own.path().join("own"), &name).kill_left(Step::Mount).await;
        assert!(left.proved.is_empty() && left.unproved.is_empty(), "{left:?}");
        assert_eq!(process::stat(daemon.process), None, "it was not waited for");
    }

    #[tokio::test]
    async fn child_of_a_job_that_has_ended_is_proved_by_its_group_and_others_are_not() {
        let (own, name) = (tempfile::tempdir().unwrap(), unique("job"));
        let started = RunProcesses::new(&own.path().join("own"), &name);
        // A shell with a process group of its own stands for the run: the job starts a process and ends before it.
        let mut run = command(&name, Step::Job);
        run.args(["-c", "sleep 600 & echo $!"]).process_group(0).stdout(Stdio::piped());
        let mut job = run.spawn().unwrap();
        started.note(Step::Job, &Process::of_child(job.id()));
        let mut number = String::new();
        BufReader::new(job.stdout.take().unwrap()).read_line(&mut number).unwrap();
        job.wait().unwrap();
        let mut other = spawn_exec(command(&name, Step::Job).args(["-c", "exec sleep 600"]).process_group(0));
        let left = started.left(Step::Job);
        assert_eq!(
            left.proved.iter().map(|one| one.process).collect::<Vec<_>>(),
            [number.trim().parse::<i32>().unwrap()]
        );
        let left = started.end(Step::Job, Duration::from_secs(60)).await;
        assert_eq!(
            (left.proved.as_slice(), left.unproved.as_slice()),
            ([].as_slice(), [super::tests::number(&other)].as_slice())
        );
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[tokio::test]
    async fn group_that_a_script_leads_proves_nothing_of_a_copied_environment() {
        let (own, name) = (tempfile::tempdir().unwrap(), unique("script"));
        let started = RunProcesses::new(&own.path().join("own"), &name);
        let mut script = Command::new("/bin/sleep").arg("600").process_group(0).spawn().unwrap();
        let in_script = |step| {
            let mut command = command(&name, step);
            spawn_exec(command.args(["-c", "exec sleep 600"]).process_group(number(&script)))
        };
        let mut job = in_script(Step::Job);
        started.note(Step::Job, &Process::of_child(job.id()));
        let mut bystander = in_script(Step::Job);
        let left = started.left(Step::Job);
        let proved: Vec<_> = left.proved.iter().map(|one| one.process).collect();
        assert_eq!((proved, left.unproved), (vec![number(&job)], vec![number(&bystander)]));
        for child in [&mut script, &mut job, &mut bystander] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn notes_that_are_no_file_of_this_user_prove_nothing() {
        let own = tempfile::tempdir().unwrap();
        let started = RunProcesses::new(own.path(), "noted1");
        let real = own.path().join("real");
        fs::write(&real, "mount 77 1234 77 77\n").unwrap();
        std::os::unix::fs::symlink(&real, started.path()).unwrap();
        assert!(started.read().is_empty());
        fs::remove_file(started.path()).unwrap();
        nix::unistd::mkfifo(&started.path(), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(started.read().is_empty());
        fs::remove_file(started.path()).unwrap();
        let odd = "mount 1 5 1 1\nmount 0 0 0 0\nmount -1 1 1 1\nx\njob 78 2 3\njob 78 2 3 4 5\n\n";
        fs::write(started.path(), format!("mount 77 1234 77 77\n{odd}")).unwrap();
        let identity = ProcessId { process: 77, start: 1234 };
        assert_eq!(
            started.read(),
            [Noted { step: "mount".to_owned(), identity, group: Some(77), session: 77 }]
        );
    }
}
