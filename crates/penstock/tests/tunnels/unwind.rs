//! `penstock tunnel unwind` and what it may find in place of a list that a run has left.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use hosts::tunnel::mounts::MountEntry;
use hosts::tunnel::undo::{Entry, begun, first_line, mounted};
use testing::tunnel::Place;
use testing::{eventually, secs};

/// A place with a tunnel `t` that mounts on `point`, and an empty directory for lists.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("point")).unwrap();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\nmount-point = \"$D/point\"\nmount = [\"false\", \"ours\"]\nunmount = [\"umount\", \"$D/point\"]\n\
         [tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    place.run(&["check", "t"]).code(0);
    place
}

fn list_of(place: &Place, tunnel: &str) -> PathBuf {
    place.path("state/penstock/undo").join(tunnel)
}

/// The list of a run of `t` that has mounted, and was killed then; `unmount` is what it would run.
fn list(place: &Place, unmount: &[&str]) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let point = place.path("point");
    [
        first_line("t", "t0000abcd", Some(boot.trim()), &place.path("run/penstock")),
        begun(&Entry::Forwards { sockets: vec![place.path("near.sock")] }),
        begun(&Entry::Mount {
            point: point.clone(),
            unmount: owned(unmount),
            lazy: owned(&["false"]),
            command: owned(&["mount", "-t", "tmpfs", "ours", &place.shown("point")]),
        }),
        mounted(&MountEntry { id: 1, point, kind: "tmpfs".into(), source: "ours".into() }),
    ]
    .concat()
}

fn mount(source: &str, point: &Path) {
    let status = Command::new("mount").args(["-t", "tmpfs", source]).arg(point).status().unwrap();
    assert!(status.success());
}

fn umount(point: &Path) {
    assert!(Command::new("umount").arg(point).status().unwrap().success());
}

#[test]
fn what_no_run_of_ours_has_written_is_neither_worked_off_nor_touched() {
    let place = place();
    let at = list_of(&place, "t");
    let text = list(&place, &["touch", &place.shown("ran")]);
    mount("ours", &place.path("point"));
    let file = |mode, owner| {
        fs::write(&at, &text).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
        chown(&at, Some(owner), None).unwrap();
    };
    place.write("precious", "precious");
    place.write("theirs", &text);
    let own = nix::unistd::geteuid().as_raw();
    let cases: [(&dyn Fn(), &str); 7] = [
        (&|| symlink(place.path("precious"), &at).unwrap(), "is not a regular file"),
        (&|| symlink(place.path("theirs"), &at).unwrap(), "is not a regular file"),
        (&|| symlink(place.path("nowhere"), &at).unwrap(), "is not a regular file"),
        (&|| fs::create_dir(&at).unwrap(), "is not a regular file"),
        (&|| nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRWXU).unwrap(), "is not a regular file"),
        (&|| file(0o622, own), "can be written to by others (mode 0622)"),
        (&|| file(0o600, 65_534), "(uid 65534), but penstock runs as "),
    ];
    for (make, why) in cases {
        make();
        place.run(&["unwind"]).code(1).says(why).says("look at it, then remove it");
        place.run(&["with", "t", "--", "true"]).code(125).says(why);
        assert!(fs::symlink_metadata(&at).is_ok(), "{why}");
        fs::remove_file(&at).or_else(|_| fs::remove_dir(&at)).unwrap();
    }
    assert_eq!(fs::read_to_string(place.path("precious")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(place.path("theirs")).unwrap(), text);
    // A list that was copied: the run of the other tunnel may be at work.
    fs::write(list_of(&place, "u"), &text).unwrap();
    place.run(&["unwind"]).code(1).says("is the undo list of tunnel t, and nothing was done");
    fs::remove_file(list_of(&place, "u")).unwrap();
    assert!(!place.path("ran").exists());
    umount(&place.path("point"));
    place.is_clean();
}

#[test]
fn a_list_cut_anywhere_is_worked_off_and_removed() {
    let place = place();
    let text = list(&place, &["umount", &place.shown("point")]);
    let seen = text.find("= mounted").unwrap();
    for cut in (0..text.len()).step_by(17) {
        // From there on the mount command may have been at work.
        let whole = text[..cut].rfind('\n').map_or(0, |end| end + 1);
        if whole >= seen {
            mount("ours", &place.path("point"));
        }
        fs::write(list_of(&place, "t"), &text[..cut]).unwrap();
        place.run(&["unwind"]).code(0).says("the leftovers of an earlier run are undone");
        assert!(!place.is_mounted(&place.path("point")), "{cut}");
        place.is_clean();
    }
}

#[test]
fn a_list_that_is_damaged_stays_until_a_configuration_tells_the_rest() {
    let place = place();
    let at = list_of(&place, "t");
    let text = list(&place, &["umount", &place.shown("point")]);
    let (first, rest) = text.split_at(text.find('\n').unwrap() + 1);
    place.write("empty.toml", "");
    place.write(
        "other.toml",
        "[tunnel.u]\nhost = \"far\"\n[tunnel.u.forward.db]\nconnect = \"127.0.0.1:1\"\n",
    );
    let other = place.shown("other.toml");
    let long = [first.as_bytes(), &vec![b'x'; 2 << 20], rest.as_bytes()].concat();
    let binary: Vec<u8> = (0..5000u32).map(|n| (n * n % 253) as u8).collect();
    for (turn, (bytes, line)) in
        [(binary, 1), (rest.as_bytes().to_vec(), 1), (long, 2), (vec![0; 100], 1)].into_iter().enumerate()
    {
        mount("ours", &place.path("point"));
        fs::write(&at, &bytes).unwrap();
        let ran = place.run(&["unwind", "t", "--config", &other]);
        ran.code(1).says(&format!("is damaged from line {line} on, and no configuration names"));
        assert!(fs::read(&at).unwrap() == bytes, "{line}");
        place.run(&["unwind"]).code(0).says("also undoing what the configuration names");
        assert!(!place.is_mounted(&place.path("point")), "{line}");
        // Those that were kept before stay.
        let aside = match turn {
            0 => at.with_extension("damaged"),
            turn => at.with_extension(format!("damaged-{}", turn + 1)),
        };
        assert!(fs::read(&aside).unwrap() == bytes, "{line}");
        place.is_clean();
    }
}

#[test]
fn what_a_run_has_mounted_is_not_forgotten_because_something_else_covers_it() {
    let place = place();
    let point = place.path("point");
    mount("ours", &point);
    mount("theirs", &point);
    fs::write(list_of(&place, "t"), list(&place, &["umount", &place.shown("point")])).unwrap();
    let ran = place.run(&["unwind"]);
    ran.code(1).says("has something else mounted over what this run mounted (tmpfs of theirs)");
    umount(&point);
    assert!(place.is_mounted(&point));
    place.run(&["unwind"]).code(0).says("the leftovers of an earlier run are undone");
    assert!(!place.is_mounted(&point));
    place.is_clean();
}

/// A tunnel whose mount command fails, once there is a file `goes-on`.
fn with_slow_mount(place: &Place) {
    place.script("mount.sh", "touch $D/mounts; while [ ! -e $D/goes-on ]; do sleep 0.02; done; exit 1");
    place.configure(
        "[tunnel.t]\nhost = \"far\"\nmount-point = \"$D/point\"\nmount = [\"$D/mount.sh\", \"ours\"]\n\
         unmount = [\"umount\", \"$D/point\"]\nunmount-lazy = [\"umount\", \"-l\", \"$D/point\"]\n\
         [tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
}

#[test]
fn what_a_run_never_saw_mounted_is_taken_away_only_if_its_mount_command_names_it() {
    let place = place();
    let point = place.path("point");
    with_slow_mount(&place);
    let stays = |ran: &testing::tunnel::Ran| {
        ran.says(
            "point has something mounted (tmpfs of admins-own), and it is not proved that this run mounted it",
        );
        assert!(!ran.err.contains("umount"), "{}", ran.err);
        assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "a day of work");
    };
    let running = place.start(&["with", "t", "--", "true"]);
    eventually("the mount command", secs(20), || place.path("mounts").exists().then_some(()));
    eventually("its note", secs(20), || place.noted().contains("mount ").then_some(()));
    running.kill();
    mount("admins-own", &point);
    fs::write(point.join("file"), "a day of work").unwrap();
    for _ in 0..2 {
        stays(place.run(&["unwind"]).code(1));
    }
    stays(place.run(&["with", "t", "--", "true"]).code(125));
    umount(&point);
    // What it had mounted is taken away.
    mount("ours", &point);
    place.run(&["unwind"]).code(0).says("its mount on").says("is taken away");
    assert!(!place.is_mounted(&point));
    // The run itself does the same, when its mount command fails.
    fs::remove_file(place.path("mounts")).unwrap();
    let running = place.start(&["with", "t", "--", "true"]);
    eventually("the mount command", secs(20), || place.path("mounts").exists().then_some(()));
    mount("admins-own", &point);
    fs::write(point.join("file"), "a day of work").unwrap();
    place.write("goes-on", "");
    stays(running.finish().code(125));
    stays(place.run(&["unwind"]).code(1));
    umount(&point);
    place.run(&["unwind"]).code(0);
    place.is_clean();
}

#[test]
fn what_was_mounted_below_the_mount_of_a_run_stays() {
    let place = place();
    let point = place.path("point");
    mount("theirs", &point);
    mount("ours", &point);
    fs::write(list_of(&place, "t"), list(&place, &["umount", &place.shown("point")])).unwrap();
    place.run(&["unwind"]).code(0).says("(tmpfs of theirs): not mounted by this tunnel, so it stays");
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here: Vec<_> = all.lines().filter(|line| line.contains(&place.shown("point"))).collect();
    assert!(here.len() == 1 && here[0].contains(" theirs "), "{here:#?}");
    umount(&point);
    place.is_clean();
}

/// A script without job control that starts a tunnel `t`, does `then` once the job works, and kills the tunnel. `lead` stands
/// before the tunnel.
fn script_with_a_killed_tunnel(place: &Place, lead: &str, job: &str, then: &str) {
    // A tunnel that mounts nothing.
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    place.script("job.sh", job);
    let script = place.script(
        "script.sh",
        &format!("{lead} {} tunnel with t -- $D/job.sh &\nt=$!\nwhile [ ! -e $D/works ] || ! grep -qs '^job ' $D/run/penstock/*/processes; do sleep 0.02; done\n{then}\nkill -9 $t\nwait $t || :", testing::binary()),
    );
    let command = place.command(&[]);
    let environment = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut shell = Command::new("setsid");
    let status = shell.args(["--wait", "sh", &script]).env_clear().envs(environment).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_command_of_the_script_that_started_a_tunnel_is_not_taken_for_its_job() {
    let place = place();
    // What stands for it copies the environment of the job, and is born into the same group.
    script_with_a_killed_tunnel(
        &place,
        "",
        "export -p > $D/env; touch $D/works; exec sleep 600",
        "( . $D/env; exec sleep 601 ) & echo $! > $D/bystander\n\
         while ! tr '\\0' '\\n' < /proc/$!/environ | grep -q TUNNEL_STEP=job; do sleep 0.02; done",
    );
    let bystander = fs::read_to_string(place.path("bystander")).unwrap().trim().to_owned();
    let ran = place.run(&["unwind"]);
    ran.code(1).says(&format!("Not signalled: process {bystander} (sleep)"));
    // The job itself has ended.
    let only = [bystander.parse::<i32>().unwrap()];
    eventually("only the bystander runs", secs(20), || (place.processes() == only).then_some(()));
    let bystander = nix::unistd::Pid::from_raw(bystander.parse().unwrap());
    nix::sys::signal::kill(bystander, nix::sys::signal::Signal::SIGKILL).unwrap();
    eventually("its end", secs(20), || place.processes().is_empty().then_some(()));
    place.run(&["unwind"]).code(0);
    place.is_clean();
}

#[test]
fn what_a_job_has_left_in_the_group_of_its_tunnel_is_ended() {
    let place = place();
    // As a shell with job control starts it: the tunnel leads its group. The job itself has ended when it is unwound.
    script_with_a_killed_tunnel(
        &place,
        "setsid",
        "sleep 600 & echo $$ > $D/job; touch $D/works; wait",
        "kill -STOP $t; kill -9 $(cat $D/job)",
    );
    eventually("only what the job has left runs", secs(20), || (place.processes().len() == 1).then_some(()));
    place.run(&["unwind"]).code(0).says("its command was running, and has ended");
    place.is_clean();
}

#[test]
fn without_proc_nothing_is_undone_and_the_list_stays() {
    let place = place();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let running = place.start(&["with", "t", "--", "sleep", "600"]);
    eventually("the job", secs(20), || place.list("t").contains("+ job").then_some(()));
    eventually("its note", secs(20), || place.noted().contains("job ").then_some(()));
    running.kill();
    let text = place.list("t");
    let command = place.command(&[]);
    let environment = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut hidden = Command::new("unshare");
    let script = format!("mount -t tmpfs none /proc && exec {} tunnel unwind t", testing::binary());
    hidden.args(["--mount", "sh", "-c", &script]).env_clear().envs(environment);
    let output = testing::tunnel::output(&mut hidden);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was done: mount /proc, and unwind again"), "{said}");
    assert_eq!((place.list("t"), place.processes().len()), (text, 1));
    place.run(&["unwind"]).code(0).says("its command was running, and has ended");
    place.is_clean();
}

#[test]
fn a_disk_that_is_full_keeps_nothing_from_being_undone() {
    let place = place();
    let undo = place.path("state/penstock/undo");
    mount("ours", &place.path("point"));
    let text = list(&place, &["umount", &place.shown("point")]);
    let page =
        usize::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap()).unwrap();
    // Two pages in all: one for the list, which it fills up to the last byte, and one for the lock.
    let status = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={},mode=700", 2 * page), "full"])
        .arg(&undo)
        .status();
    assert!(status.unwrap().success());
    fs::write(undo.join("t.lock"), "x").unwrap();
    let half = format!("+ job {}", "x".repeat(page - text.len() - 6));
    fs::write(undo.join("t"), text.clone() + &half).unwrap();
    let room = fs::write(undo.join("t.more"), "x").unwrap_err();
    assert_eq!(room.kind(), std::io::ErrorKind::StorageFull);
    fs::remove_file(undo.join("t.more")).unwrap();
    place.run(&["unwind"]).code(0).says("the leftovers of an earlier run are undone");
    assert!(!place.is_mounted(&place.path("point")) && !undo.join("t").exists());
    umount(&undo);
    place.is_clean();
}

#[test]
fn of_two_that_unwind_the_second_is_told_of_the_first() {
    let place = place();
    mount("ours", &place.path("point"));
    let unmount = place.script(
        "unmount.sh",
        "touch $D/works; while [ ! -e $D/goes-on ]; do sleep 0.02; done; umount $D/point",
    );
    fs::write(list_of(&place, "t"), list(&place, &[&unmount])).unwrap();
    let first = place.start(&["unwind"]);
    eventually("the unmounting", secs(20), || place.path("works").exists().then_some(()));
    let process = format!("process {}", first.child.id());
    let busy = format!("being unwound, by {process}");
    place.run(&["unwind", "t"]).code(1).says(&busy);
    // Of all tunnels it says so, and has nothing more to do.
    let all = place.run(&["unwind"]);
    all.code(0).says(&busy);
    assert!(!all.out.contains("nothing is left"), "{}", all.out);
    for asked in [&["status"][..], &["status", "t"], &["down", "t"]] {
        place.run(asked).code(1).says(&format!("{process} works on tunnel t, but its socket "));
    }
    place.write("goes-on", "");
    first.finish().code(0).says("the leftovers of an earlier run are undone");
    assert!(!place.is_mounted(&place.path("point")));
    place.run(&["unwind", "t"]).code(0).says("nothing to undo");
    place.is_clean();
}

#[test]
fn an_unknown_tunnel_is_not_said_to_be_undone() {
    let place = place();
    place.run(&["unwind", "t"]).code(0).says("nothing to undo");
    let unknown = |arguments: &[&str], config: &str| {
        let ran = place.run(arguments);
        ran.code(1).says("error: there is no tunnel nope, and no leftovers of one\n");
        let hint = format!("  hint: no tunnel has that name in {}: there are: t\n", place.shown(config));
        assert!(ran.err.contains(&hint) && ran.out.is_empty(), "{}{}", ran.out, ran.err);
    };
    unknown(&["unwind", "nope"], "penstock.toml");
    assert_eq!(place.run(&["down", "nope"]).status.code(), Some(1), "as `down` has it");
    fs::copy(place.path("penstock.toml"), place.path("other.toml")).unwrap();
    unknown(&["unwind", "nope", "-c", &place.shown("other.toml")], "other.toml");
    // One that was there, and is out of the configuration by now, has left nothing, too.
    let other = "[tunnel.u]\nhost = \"far\"\n[tunnel.u.forward.db]\nconnect = \"127.0.0.1:1\"\n";
    place.configure(other);
    place.run(&["unwind", "t"]).code(0).says("nothing to undo");
    place.run(&["unwind", "nope"]).code(1).says("there is no tunnel nope");
    // What is in a broken configuration is unknown: it is no obstacle, as it only helps.
    place.configure("[tunnel");
    place.run(&["unwind", "nope"]).code(0).says("nothing to undo");
    // The leftovers are undone with any configuration.
    place.configure(other);
    fs::write(
        list_of(&place, "nope"),
        first_line("nope", "t0000abcd", Some("boot"), &place.path("run/penstock")),
    )
    .unwrap();
    place.run(&["unwind", "nope"]).code(0).says("the leftovers of an earlier run are undone");
    place.is_clean();
}
