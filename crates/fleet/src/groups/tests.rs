use super::*;
use hosts::fleet::nodeset::NodeSet;
use std::fs;

/// A configuration directory of ClusterShell with commands, a second directory of sources, and YAML.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write(
        "groups.conf",
        "[Main]\ndefault: local\nconfdir: $CFGDIR/conf.d\nautodir: $CFGDIR/groups.d\n\n[local]\n\
         map: sed -n 's/^$GROUP:\\(.*\\)/\\1/p' $CFGDIR/flat\nlist: sed -n 's/^\\([a-z]*\\):.*/\\1/p' $CFGDIR/flat\n",
    );
    write("flat", "web: web[1-3]\ndb: db[1,3]\n");
    write("conf.d/more.conf", "[racks]\nmap: echo $GROUP-n[01-02]\nlist: echo r1 r2\n");
    write("groups.d/site.yaml", "site:\n  gpu: 'gpu[7-8]'\n  all: '@gpu,head'\n");
    directory
}

fn nodes(found: &Found, set: &str) -> Result<String, String> {
    let mut run = call;
    let mut groups = found.catalog.look_up(&mut run);
    let set = NodeSet::parse(set, &mut groups).map_err(|fault| fault.to_string())?;
    Ok(hosts::fleet::nodeset::fold(set.sorted().iter().map(AsRef::as_ref)))
}

#[test]
fn groups_of_clustershell_mean_what_nodeset_says() {
    let directory = directory();
    let directories =
        Directories { clustershell: vec![directory.path().to_owned()], ..Directories::default() };
    let found = catalog(&directories);
    assert!(found.notes.is_empty() && found.faults.is_empty(), "{found:?}");
    for set in ["@web", "@local:db", "@web,@db!web2", "@racks:r1", "@site:gpu", "@site:*", "@racks:r[1-2]"] {
        let theirs = Command::new("nodeset")
            .args(["-f", set])
            .env("CLUSTERSHELL_CFGDIR", directory.path())
            .env("HOME", directory.path())
            .output()
            .expect("nodeset is installed by `make setup`");
        let theirs = String::from_utf8(theirs.stdout).unwrap().trim().to_owned();
        assert!(!theirs.is_empty(), "{set}");
        assert_eq!(nodes(&found, set), Ok(theirs), "{set}");
    }
}

#[test]
fn our_groups_come_first_and_the_more_important_directory_decides() {
    let (ours, user, system) = (tempfile::tempdir().unwrap(), directory(), tempfile::tempdir().unwrap());
    fs::write(ours.path().join("groups"), "web: mine\n").unwrap();
    let text = "[Main]\ndefault: other\n[local]\nmap: echo system\n[other]\nmap: echo other\n";
    fs::write(system.path().join("groups.conf"), text).unwrap();
    let clustershell = vec![user.path().to_owned(), system.path().to_owned()];
    let found = catalog(&Directories { own: Some(ours.path().to_owned()), clustershell, nowhere: None });
    assert_eq!(nodes(&found, "@web"), Ok("mine".to_owned()));
    assert_eq!(nodes(&found, "@db"), Ok("db[1,3]".to_owned()));
    assert_eq!(nodes(&found, "@local:web"), Ok("web[1-3]".to_owned()));
    assert_eq!(nodes(&found, "@other:x"), Ok("other".to_owned()));
}

#[test]
fn broken_files_of_clustershell_are_notes_and_the_others_are_read() {
    let directory = directory();
    fs::write(directory.path().join("conf.d/bad.conf"), "no section\n").unwrap();
    let found =
        catalog(&Directories { clustershell: vec![directory.path().to_owned()], ..Directories::default() });
    assert!(found.notes.len() == 1 && found.notes[0].contains("bad.conf:1: "), "{:?}", found.notes);
    assert_eq!(nodes(&found, "@racks:r1"), Ok("r1-n[01-02]".to_owned()));
}

#[test]
fn pipe_in_the_place_of_a_file_of_groups_is_a_fault_and_nobody_waits_for_it() {
    let own = tempfile::tempdir().unwrap();
    let found = || catalog(&Directories { own: Some(own.path().to_owned()), ..Directories::default() });
    for name in ["groups", "groups.yaml"] {
        let path = own.path().join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fault = format!("cannot read the groups in {}: it is not a regular file", path.display());
        assert_eq!(found().faults, [fault]);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(found().faults.is_empty());
    }
}

#[test]
fn command_that_hangs_is_ended_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let upcall = |command: &str| Upcall {
        command: command.to_owned(),
        directory: directory.path().display().to_string(),
    };
    // Long enough for the shell to get to the end of what it does before it waits, on a busy machine.
    let hangs = call_within(&upcall("sleep 1000 & echo $! >pid; wait"), Duration::from_secs(5));
    assert_eq!(hangs, Err("still running after 5 s; it was ended".to_owned()));
    let pid = fs::read_to_string(directory.path().join("pid")).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        // Process 1 may not have reaped the orphan yet: then the orphan is a zombie.
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            break;
        }
        assert!(Instant::now() < until, "{state}");
        std::thread::yield_now();
    }
    let limit = Duration::from_millis(300);
    let silent = call_within(&upcall("exec >&- 2>&-; sleep 1000"), limit);
    assert_eq!(silent, Err("still running after 0.3 s; it was ended".to_owned()));
    let floods = call_within(&upcall("yes"), Duration::from_secs(60));
    assert!(floods.as_ref().is_err_and(|why| why.contains("more than")), "{floods:?}");
    assert_eq!(call(&upcall("echo said; exit 0")), Ok("said\n".to_owned()));
    assert_eq!(call(&upcall("echo why >&2; exit 3")), Err("exit status: 3: why".to_owned()));
}
