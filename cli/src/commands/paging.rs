//! Lists over several pages.

use crate::output::Output;

/// The items of as many pages as it takes to have `limit`, or all; and whether there are more.
pub(super) async fn up_to<T, E, F>(
    limit: usize,
    mut page: impl FnMut(usize, Option<String>) -> F,
) -> Result<(Vec<T>, bool), E>
where
    F: Future<Output = Result<(Vec<T>, Option<String>), E>>,
{
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let (found, next) = page(limit - items.len(), cursor).await?;
        items.extend(found);
        cursor = next;
        if cursor.is_none() || items.len() >= limit {
            return Ok((items, cursor.is_some()));
        }
    }
}

/// Tells the user if a list is not complete.
pub(super) fn note_if_incomplete(has_more: bool, output: Output) -> anyhow::Result<()> {
    match has_more {
        true => output.note("There are more: raise --limit."),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_read_until_there_are_enough_items_or_no_more_pages() {
        let page = |wanted: usize, cursor: Option<String>| async move {
            let from: usize = cursor.map_or(0, |cursor| cursor.parse().unwrap());
            let to = (from + wanted.min(2)).min(5);
            Ok::<_, anyhow::Error>(((from..to).collect::<Vec<_>>(), (to < 5).then(|| to.to_string())))
        };
        assert_eq!(up_to(3, page).await.unwrap(), (vec![0, 1, 2], true));
        assert_eq!(up_to(5, page).await.unwrap(), (vec![0, 1, 2, 3, 4], false));
        assert_eq!(up_to(9, page).await.unwrap(), (vec![0, 1, 2, 3, 4], false));
    }
}
