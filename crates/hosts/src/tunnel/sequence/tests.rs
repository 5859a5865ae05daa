use super::*;

/// Simulated machine on which each step succeeds, except chosen ones.
#[derive(Default)]
struct World {
    connected: Flag,
    mounted: Flag,
    acts: Vec<Act>,
    /// Step that always fails, and what the step leaves.
    fails: Option<(Act, Leaves)>,
    /// Number of proper unmounts that fail before one succeeds.
    busy: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flag {
    #[default]
    Off,
    On,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Nothing,
    Everything,
}

impl World {
    fn run(&mut self, sequence: &mut Sequence, job: JobEnd) -> Verdict {
        while let Some(act) = sequence.act() {
            assert!(self.acts.len() < 60, "no end: {:?}", self.acts);
            self.acts.push(act);
            if act == Act::Work {
                assert_eq!(self.connected, Flag::On);
                sequence.handle_job(job.clone());
                continue;
            }
            let outcome = match self.fails {
                Some((failing, leaves)) if failing == act => {
                    if leaves == Leaves::Everything {
                        let _ = self.perform(act);
                    }
                    Err("broken".to_owned())
                }
                _ => self.perform(act),
            };
            sequence.handle_done(outcome);
        }
        sequence.verdict()
    }

    fn perform(&mut self, act: Act) -> Result<(), String> {
        match act {
            Act::Connect => self.connected = Flag::On,
            Act::Mount => {
                assert_eq!(self.connected, Flag::On);
                self.mounted = Flag::On;
            }
            Act::VerifyMount if self.mounted == Flag::Off => return Err("nothing is mounted".into()),
            Act::Unmount(UnmountMode::Proper) if self.busy > 0 => {
                self.busy -= 1;
                return Err("target is busy".into());
            }
            Act::Unmount(_) => self.mounted = Flag::Off,
            Act::VerifyUnmounted if self.mounted == Flag::On => return Err("still mounted".into()),
            Act::Disconnect => {
                self.connected = Flag::Off;
            }
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn a_good_run_does_everything_once_and_in_order() {
    let mut world = World::default();
    let verdict = world.run(&mut Sequence::new(Mounting::Wanted), JobEnd::Exited(0));
    let wanted = [
        Act::Guard,
        Act::Connect,
        Act::Prove,
        Act::Mount,
        Act::VerifyMount,
        Act::Work,
        Act::Sync,
        Act::Unmount(UnmountMode::Proper),
        Act::VerifyUnmounted,
        Act::Disconnect,
    ];
    assert_eq!((world.acts.as_slice(), verdict.exit_code()), (&wanted[..], 0));
    let mut world = World::default();
    world.run(&mut Sequence::new(Mounting::None), JobEnd::Exited(0));
    assert_eq!(world.acts, [Act::Connect, Act::Prove, Act::Work, Act::Disconnect]);
}

#[test]
fn whatever_fails_and_whatever_it_leaves_behind_is_undone() {
    let steps = [
        Act::Guard,
        Act::Connect,
        Act::Prove,
        Act::Mount,
        Act::VerifyMount,
        Act::Sync,
        Act::Unmount(UnmountMode::Proper),
    ];
    for fails in steps {
        for leaves in [Leaves::Nothing, Leaves::Everything] {
            let mut world = World { fails: Some((fails, leaves)), ..World::default() };
            let verdict = world.run(&mut Sequence::new(Mounting::Wanted), JobEnd::Exited(0));
            assert_eq!((world.connected, world.mounted), (Flag::Off, Flag::Off), "{fails} {leaves:?}");
            let before_job = !matches!(fails, Act::Sync | Act::Unmount(_));
            assert_eq!(verdict.job.is_none(), before_job, "{fails} {leaves:?}");
            let code = if matches!(fails, Act::Unmount(_)) { 0 } else { OURS };
            assert_eq!(verdict.exit_code(), code, "{fails} {leaves:?}");
        }
    }
}

#[test]
fn a_busy_mount_is_tried_again_and_then_taken_away_lazily() {
    let mut world = World { busy: 2, ..World::default() };
    assert_eq!(world.run(&mut Sequence::new(Mounting::Wanted), JobEnd::Exited(0)).exit_code(), 0);
    assert!(!world.acts.contains(&Act::Unmount(UnmountMode::Lazy)));
    let mut world = World { busy: usize::MAX, ..World::default() };
    world.run(&mut Sequence::new(Mounting::Wanted), JobEnd::Exited(0));
    assert_eq!(world.mounted, Flag::Off);
    let lazy = world.acts.iter().position(|act| *act == Act::Unmount(UnmountMode::Lazy)).unwrap();
    let proper = world.acts.iter().filter(|act| **act == Act::Unmount(UnmountMode::Proper)).count();
    assert_eq!((proper, world.acts.len() - lazy), (5, 3), "{:?}", world.acts);
}

#[test]
fn a_mount_that_cannot_be_taken_away_is_a_problem_even_after_a_good_job() {
    let mut world = World { fails: Some((Act::VerifyUnmounted, Leaves::Nothing)), ..World::default() };
    let verdict = world.run(&mut Sequence::new(Mounting::Wanted), JobEnd::Exited(0));
    assert_eq!((verdict.exit_code(), verdict.problems.len()), (OURS, 1));
    assert_eq!(world.connected, Flag::Off);
}

#[test]
fn stopping_at_any_act_begins_nothing_new_and_undoes_what_was_begun() {
    for stop_at in 0..9 {
        let mut world = World::default();
        let mut sequence = Sequence::new(Mounting::Wanted);
        for _ in 0..stop_at {
            let Some(act) = sequence.act() else { break };
            if act == Act::Work {
                sequence.handle_job(JobEnd::Exited(0));
            } else {
                sequence.handle_done(world.perform(act));
            }
        }
        sequence.handle_stop();
        let begun = sequence.act();
        world.run(&mut sequence, JobEnd::Signalled(2));
        assert_eq!((world.connected, world.mounted), (Flag::Off, Flag::Off), "{stop_at}");
        let worked = world.acts.contains(&Act::Work);
        assert!(!worked || begun == Some(Act::Work), "{stop_at}: {:?}", world.acts);
    }
}

#[test]
fn the_exit_status_is_the_jobs() {
    let code = |job: Option<JobEnd>, problems: usize| {
        let problem = Problem { at: Act::Sync, text: String::new() };
        Verdict { job, problems: vec![problem; problems] }.exit_code()
    };
    assert_eq!(code(Some(JobEnd::Exited(3)), 1), 3);
    assert_eq!(code(Some(JobEnd::Signalled(15)), 0), 143);
    assert_eq!(code(Some(JobEnd::NotStarted(127, String::new())), 1), 127);
    assert_eq!(code(Some(JobEnd::Exited(0)), 1), OURS);
    assert_eq!(code(Some(JobEnd::Stopped), 0), 0);
    assert_eq!(code(None, 0), OURS);
}

#[test]
fn unwinding_unmounts_only_what_is_mounted() {
    let mut world = World { connected: Flag::On, mounted: Flag::On, ..World::default() };
    assert_eq!(world.run(&mut Sequence::unwind(Mounting::Wanted), JobEnd::Stopped).exit_code(), 0);
    assert_eq!((world.mounted, world.connected), (Flag::Off, Flag::Off));
    let mut world = World::default();
    world.run(&mut Sequence::unwind(Mounting::Wanted), JobEnd::Stopped);
    assert_eq!(world.acts, [Act::VerifyUnmounted, Act::Disconnect]);
}

#[test]
fn what_is_left_mounted_is_a_problem_and_never_unmounted() {
    let mut sequence = Sequence::unwind(Mounting::Wanted);
    assert_eq!(sequence.act(), Some(Act::VerifyUnmounted));
    sequence.handle_left("of others".to_owned());
    assert_eq!(sequence.act(), Some(Act::Disconnect));
    sequence.handle_done(Ok(()));
    assert_eq!(sequence.act(), None);
    let problem = Problem { at: Act::Unmount(UnmountMode::Proper), text: "of others".to_owned() };
    assert_eq!((sequence.verdict().problems, sequence.verdict().exit_code()), (vec![problem], OURS));
}
