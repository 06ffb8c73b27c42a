//! Doubly linked lists of segment numbers. A segment is in at most one list, and can be removed
//! from any position in constant time.

/// The value that marks the absence of a segment.
const NONE: u32 = u32::MAX;

/// The neighbours of a segment in its list.
#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

/// The first and the last segment of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

/// `LISTS` lists of the segments 0 to n − 1.
#[derive(Debug)]
pub(crate) struct Lists<const LISTS: usize> {
    links: Vec<Links>,
    ends: [Ends; LISTS],
}

impl<const LISTS: usize> Lists<LISTS> {
    pub(crate) fn new(segments: usize) -> Self {
        let mut lists = Self { links: Vec::new(), ends: [Ends { first: NONE, last: NONE }; LISTS] };
        lists.extend(segments);
        lists
    }

    /// Raises the number of segments to `segments` if it is lower.
    pub(crate) fn extend(&mut self, segments: usize) {
        let segments = segments.max(self.links.len());
        self.links.resize(segments, Links { previous: NONE, next: NONE });
    }

    /// Returns the first segment of a list, or `None` if the list is empty.
    pub(crate) fn front(&self, list: usize) -> Option<u32> {
        some(self.ends[list].first)
    }

    /// Returns the segment after `segment` in its list.
    #[cfg(test)]
    pub(crate) fn next(&self, segment: u32) -> Option<u32> {
        some(self.links[segment as usize].next)
    }

    /// Appends a segment that is in no list.
    pub(crate) fn push_back(&mut self, list: usize, segment: u32) {
        let previous = std::mem::replace(&mut self.ends[list].last, segment);
        self.links[segment as usize] = Links { previous, next: NONE };
        match some(previous) {
            Some(previous) => self.links[previous as usize].next = segment,
            None => self.ends[list].first = segment,
        }
    }

    /// Removes a segment from `list`, which contains it.
    pub(crate) fn remove(&mut self, list: usize, segment: u32) {
        let Links { previous, next } = self.links[segment as usize];
        match some(previous) {
            Some(previous) => self.links[previous as usize].next = next,
            None => self.ends[list].first = next,
        }
        match some(next) {
            Some(next) => self.links[next as usize].previous = previous,
            None => self.ends[list].last = previous,
        }
    }
}

fn some(segment: u32) -> Option<u32> {
    (segment != NONE).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(lists: &Lists<2>, list: usize) -> Vec<u32> {
        std::iter::successors(lists.front(list), |segment| lists.next(*segment)).collect()
    }

    #[test]
    fn segments_are_removed_from_front_middle_and_back() {
        for (gone, left) in [(3, [1, 4]), (1, [3, 4]), (4, [3, 1])] {
            let mut lists = Lists::<2>::new(6);
            [3, 1, 4].into_iter().for_each(|segment| lists.push_back(1, segment));
            lists.push_back(0, 5);
            lists.remove(1, gone);
            assert_eq!(content(&lists, 1), left, "without {gone}");
            lists.push_back(1, gone);
            assert_eq!(content(&lists, 1), [left[0], left[1], gone]);
            assert_eq!(content(&lists, 0), [5]);
        }
    }

    #[test]
    fn a_list_that_was_emptied_can_be_filled_again() {
        let mut lists = Lists::<2>::new(2);
        lists.push_back(0, 1);
        lists.remove(0, 1);
        assert_eq!(lists.front(0), None);
        lists.push_back(0, 0);
        assert_eq!(content(&lists, 0), [0]);
    }
}
