//! Arguments of the commands that show and change the configuration. `None` if they are not as the command has them.

use logic::transaction::{Ask, Extent, Whose};

pub(super) fn show(arguments: &[&str]) -> Option<Ask> {
    match *arguments {
        [] => Some(Ask::Show { path: None }),
        [path] => Some(Ask::Show { path: Some(path.to_owned()) }),
        _ => None,
    }
}

pub(super) fn set(arguments: &[&str]) -> Option<Ask> {
    let [path, value] = *arguments else { return None };
    Some(Ask::Set { path: path.to_owned(), value: value.to_owned() })
}

pub(super) fn add(arguments: &[&str]) -> Option<Ask> {
    let [path, value] = *arguments else { return None };
    Some(Ask::Add { path: path.to_owned(), value: value.to_owned() })
}

pub(super) fn remove(arguments: &[&str]) -> Option<Ask> {
    let (path, value) = match *arguments {
        [path] => (path, None),
        [path, value] => (path, Some(value.to_owned())),
        _ => return None,
    };
    Some(Ask::Remove { path: path.to_owned(), value })
}

/// The error is a refusal with its reason, or `None` for wrong usage.
pub(super) fn commit(arguments: &[&str]) -> Result<Ask, Option<String>> {
    let confirm = match *arguments {
        [] => None,
        ["confirm", time] => {
            let time = config::duration(time).map_err(|why| Some(format!("confirm {time}: {why}")))?;
            Some(time)
        }
        _ => return Err(None),
    };
    Ok(Ask::Commit { confirm })
}

pub(super) fn abort(arguments: &[&str]) -> Option<Ask> {
    let whose = match *arguments {
        [] => Whose::Own,
        ["force"] => Whose::Any,
        _ => return None,
    };
    Some(Ask::Abort { whose })
}

pub(super) fn undo(arguments: &[&str]) -> Option<Ask> {
    let (rest, extent) = match arguments {
        [number, "and-later"] => (std::slice::from_ref(number), Extent::AndLater),
        all => (all, Extent::One),
    };
    number(rest).map(|number| Ask::Undo { number, extent })
}

pub(super) fn history(arguments: &[&str]) -> Option<Ask> {
    number(arguments).map(|number| Ask::History { number })
}

pub(super) fn save(arguments: &[&str]) -> Option<Ask> {
    match *arguments {
        [] => Some(Ask::Save),
        ["done"] => Some(Ask::Saved),
        _ => None,
    }
}

/// The number of a change, if there is an argument. `None` if it is no number.
fn number(arguments: &[&str]) -> Option<Option<u64>> {
    match *arguments {
        [] => Some(None),
        [number] => number.parse().ok().map(Some),
        _ => None,
    }
}
