//! `penstock lab` seen by clients of other projects.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::{Command, Output, Stdio};

use testing::lab::Lab;
use testing::server::{clear_environment, run_to_end};
use testing::{secs, tools};

#[track_caller]
fn text(output: &Output) -> (Option<i32>, String, String) {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), stdout, stderr)
}

#[test]
fn commands_of_the_lab_do_what_openssh_expects_of_a_shell() {
    let lab = Lab::start(3, &[]);
    let run = |command: &str| text(&lab.ssh(&[], "lab002", command));
    let ended =
        |status: i32, stdout: &str, stderr: &str| (Some(status), stdout.to_owned(), stderr.to_owned());
    assert_eq!(run("true"), ended(0, "", ""));
    assert_eq!(run("echo $HOSTNAME; hostname; uname -n"), ended(0, "lab002\nlab002\nlab002\n", ""));
    assert_eq!(run("echo a; echo b >&2; exit 7"), ended(7, "a\n", "b\n"));
    assert_eq!(run("false || printf '%s\\x21' \"it's\""), ended(0, "it's!", ""));
    assert_eq!(run("false; echo $?"), ended(0, "1\n", ""));
    assert_eq!(run("nonsense"), ended(127, "", "sh: nonsense: not found\n"));
    // OpenSSH says 255 of a command that a signal ended.
    assert_eq!(run("kill-self SEGV").0, Some(255));
    let (status, stdout, _) = run("flood 1000000");
    assert_eq!((status, stdout.len()), (Some(0), 1_000_000));
    assert!(stdout.starts_with("00000002 000000000000 "), "{stdout:.64}");
    assert!(run("uptime").1.contains("load average"));
}

#[test]
fn a_lab_has_the_same_identities_when_it_is_started_again_and_tells_what_each_host_received() {
    let directory = tempfile::tempdir().unwrap();
    let keys = |lab: &Lab| -> Vec<String> {
        let known = fs::read_to_string(lab.file("known_hosts")).unwrap();
        known.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    };
    let mut lab = Lab::start_in(directory.path(), 5, &[]);
    let first = keys(&lab);
    assert_eq!(first.len(), 5);
    assert!(lab.ssh(&[], "lab004", "echo here").status.success());
    assert!(lab.wait_for("lab004", "exec").ends_with("exec echo here"));
    assert!(lab.wait_for("lab004", "method=publickey").contains(" user=lab "));
    lab.wait_for("lab004", "close");
    assert_eq!(lab.journal("lab003"), Vec::<String>::new());
    assert_eq!(lab.terminate().code(), Some(0));
    let lab = Lab::start_in(directory.path(), 5, &["--first", "127.67.0.1"]);
    assert_eq!(keys(&lab), first);
    assert!(lab.address("lab001").starts_with("127.67.0.1:"));
    assert!(lab.ssh(&[], "lab001", "true").status.success());
}

#[test]
fn cat_of_a_lab_host_reads_its_own_files_and_no_others() {
    let lab = Lab::start(2, &[]);
    let run = |command: &str| text(&lab.ssh(&[], "lab001", command));
    let own = lab.file("files").join("lab001");
    fs::create_dir_all(own.join("etc")).unwrap();
    fs::write(own.join("chrony.conf"), "pool ntp.example.org\n").unwrap();
    fs::write(own.join("etc/b"), vec![b'b'; 100_000]).unwrap();
    fs::create_dir_all(lab.file("files").join("lab002")).unwrap();
    fs::write(lab.file("files").join("lab002/secret"), "secret\n").unwrap();
    for name in ["chrony.conf", "/chrony.conf", "~/chrony.conf", "./etc/../chrony.conf", "../../chrony.conf"]
    {
        assert_eq!(
            run(&format!("cat {name}")),
            (Some(0), "pool ntp.example.org\n".into(), String::new()),
            "{name}"
        );
    }
    assert_eq!(run("cat chrony.conf etc/b").1.len(), 21 + 100_000);
    symlink("/etc/passwd", own.join("link")).unwrap();
    symlink("../lab002", own.join("neighbour")).unwrap();
    symlink("chrony.conf", own.join("near")).unwrap();
    nix::unistd::mkfifo(&own.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, why) in [
        ("link", "a link, which this host does not follow"),
        ("near", "a link, which this host does not follow"),
        ("neighbour/secret", "a link, which this host does not follow"),
        ("../lab002/secret", "No such file or directory"),
        ("/etc/passwd", "No such file or directory"),
        ("etc", "Is a directory"),
        ("pipe", "not a regular file"),
    ] {
        let (status, stdout, stderr) = run(&format!("cat {name}"));
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{name}: {stderr}");
        assert!(stderr.contains(&format!("cat: {name}: {why}\n")), "{name}: {stderr}");
    }
    assert_eq!(run("cat"), (Some(0), String::new(), String::new()), "its standard input, which is empty");
}

#[test]
fn parallel_ssh_pdsh_and_clush_reach_all_hosts() {
    let lab = Lab::start(20, &[]);
    let options = format!("-F {}", lab.path("ssh_config"));
    let run = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(tools::program(name));
        clear_environment(&mut command);
        command.env("PDSH_SSH_ARGS_APPEND", &options).args(arguments).stdin(Stdio::null());
        let (status, stdout, stderr) = text(&run_to_end(&mut command, secs(60)));
        assert_eq!(status, Some(0), "{name}: {stdout}{stderr}");
        stdout
    };
    let hosts = lab.path("hosts");
    assert_eq!(run("parallel-ssh", &["-h", &hosts, "-x", &options, "true"]).matches("[SUCCESS]").count(), 20);
    assert_eq!(run("pdsh", &["-R", "ssh", "-w", &format!("^{hosts}"), "hostname"]).lines().count(), 20);
    let folded = run("clush", &["-b", "-o", &options, "--hostfile", &hosts, "uname"]);
    assert!(folded.contains("lab[001-020] (20)"), "{folded}");
}

#[test]
fn files_go_to_a_host_and_come_back_and_stay_in_its_directory() {
    let lab = Lab::start(2, &[]);
    let directory = tempfile::tempdir().unwrap();
    let (there, back) = (directory.path().join("there"), directory.path().join("back"));
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&there, &content).unwrap();
    let batch = directory.path().join("batch");
    let (from, to) = (there.to_str().unwrap(), back.to_str().unwrap());
    let steps = format!(
        "mkdir a\nput {from} a/b\nrename a/b ../../c\nchmod 640 c\nls -l /\nget c {to}\nrm c\nrmdir a\n"
    );
    fs::write(&batch, steps).unwrap();
    let mut sftp = Command::new(tools::program("sftp"));
    clear_environment(&mut sftp);
    sftp.arg("-F").arg(lab.file("ssh_config")).arg("-b").arg(&batch).arg("lab002").stdin(Stdio::null());
    let (status, stdout, stderr) = text(&run_to_end(&mut sftp, secs(60)));
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("rw-r-----") && stdout.contains("12000000"), "{stdout}");
    assert!(fs::read(&back).unwrap() == content);
    assert_eq!(fs::read_dir(lab.file("files").join("lab002")).unwrap().count(), 0);
}

#[test]
fn a_host_leads_on_to_other_hosts_of_the_lab_and_nowhere_else() {
    let lab = Lab::start(3, &[]);
    // Through lab001, end to end: the keys of both are checked.
    let config = lab.path("ssh_config");
    let jump = format!("ProxyCommand=ssh -F '{config}' -W '[%h]:%p' lab001");
    let output = lab.ssh(&["-o", &jump], "lab003", "hostname");
    assert_eq!(text(&output), (Some(0), "lab003\n".to_owned(), String::new()));
    assert!(lab.wait_for("lab001", "direct-tcpip").contains("127.66.0.3:"));
    let mut outside = Command::new(tools::program("ssh"));
    clear_environment(&mut outside);
    outside.args(["-F", &config, "-W", "192.0.2.1:80", "lab001"]).stdin(Stdio::null());
    let (status, _, stderr) = text(&run_to_end(&mut outside, secs(60)));
    assert!(status != Some(0) && stderr.contains("administratively prohibited"), "{stderr}");
}

#[test]
fn a_lab_without_a_directory_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(testing::binary());
    clear_environment(&mut command);
    command.args(["lab", "3"]).env("TMPDIR", temporary.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = testing::server::Lines::follow(child.stdout.take().unwrap());
    lines.wait_for("ready: 3 hosts", secs(60));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), nix::sys::signal::SIGINT)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// Another user could put a link where the lab is about to write.
#[test]
fn a_lab_writes_only_where_no_other_user_can_and_through_no_link() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("lab");
    drop(Lab::start_in(&directory, 2, &[]));
    let victim = place.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let refused = |why: &str| {
        let mut command = Command::new(testing::binary());
        clear_environment(&mut command);
        command.args(["lab", "2", "--dir", directory.to_str().unwrap(), "--", "true"]).stdin(Stdio::null());
        let (status, _, stderr) = text(&run_to_end(&mut command, secs(60)));
        assert_eq!(status, Some(2), "{stderr}");
        assert!(stderr.contains(why) && stderr.contains("hint: "), "{stderr}");
    };
    let mode = |name: &str, mode| {
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["", "bin", "home/.ssh", "files"] {
        mode(name, 0o777);
        refused("others can write to");
        mode(name, 0o700);
    }
    if nix::unistd::geteuid().is_root() {
        chown(directory.join("bin"), Some(65_534), None).unwrap();
        refused("belongs to");
        chown(directory.join("bin"), Some(0), None).unwrap();
    }
    // A directory that is a link leads out of the lab.
    fs::rename(directory.join("bin"), directory.join("moved")).unwrap();
    symlink(directory.join("moved"), directory.join("bin")).unwrap();
    refused("is not a directory");
    fs::remove_file(directory.join("bin")).unwrap();
    fs::rename(directory.join("moved"), directory.join("bin")).unwrap();
    // Links that were put there while it stood open.
    for name in ["bin/penstock.new", "bin/ssh.new", "hosts.new", "client_key.new", "home/.ssh/config.new"] {
        symlink(&victim, directory.join(name)).unwrap();
    }
    drop(Lab::start_in(&directory, 2, &[]));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!directory.join("bin/penstock").is_symlink() && !directory.join("bin/penstock.new").exists());
}

#[test]
fn files_of_a_lab_host_are_not_behind_links() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("lab");
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "precious").unwrap();
    drop(Lab::start_in(&directory, 2, &[]));
    fs::create_dir_all(directory.join("files/lab002")).unwrap();
    symlink(&outside, directory.join("files/lab001")).unwrap();
    symlink(&outside, directory.join("files/lab002/out")).unwrap();
    symlink(outside.join("keep"), directory.join("files/lab002/keep")).unwrap();
    let lab = Lab::start_in(&directory, 2, &[]);
    let batch = place.path().join("batch");
    for (host, step) in [
        ("lab001", "rm keep"),
        ("lab001", "mkdir new"),
        ("lab001", "put batch new"),
        ("lab001", "ls"),
        ("lab002", "rm out/keep"),
        ("lab002", "get out/keep got"),
        ("lab002", "get keep got"),
        ("lab002", "put batch keep"),
        ("lab002", "chmod 777 keep"),
        ("lab002", "rename out/keep here"),
        ("lab002", "ls out"),
    ] {
        fs::write(&batch, format!("{step}\n")).unwrap();
        let mut sftp = Command::new(tools::program("sftp"));
        clear_environment(&mut sftp);
        sftp.arg("-F").arg(lab.file("ssh_config")).arg("-b").arg(&batch).arg(host);
        let output = run_to_end(sftp.current_dir(place.path()).stdin(Stdio::null()), secs(60));
        // A listing that fails is told, and is no failure of sftp.
        let (status, _, stderr) = text(&output);
        assert!(
            status == Some(1) || stderr.contains("Permission denied"),
            "{host} {step}: {status:?} {stderr}"
        );
    }
    assert_eq!(fs::read_to_string(outside.join("keep")).unwrap(), "precious");
    assert_eq!(fs::metadata(outside.join("keep")).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}
