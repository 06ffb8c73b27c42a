//! Batches of operations that have the same type and are sent together.

use crate::core::connection::Connection;
use crate::core::operation::{Operation, ReplyFailure};
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::answer::Answer;

/// A batch of operations on one server. The batch's output contains the outputs of its operations,
/// in order.
pub(crate) struct Batch<O: Operation> {
    operations: Vec<O>,
    outputs: Vec<O::Output>,
}

impl<O: Operation> Batch<O> {
    /// Creates a batch of at least one operation.
    pub(crate) fn new(operations: Vec<O>) -> Self {
        Self { operations, outputs: Vec::new() }
    }
}

impl<O: Operation> Operation for Batch<O> {
    type Output = Vec<O::Output>;

    fn reads(&self) -> bool {
        self.operations.iter().all(O::reads)
    }

    fn command(&self) -> Command {
        self.operations.first().map_or(Command::Other, O::command).many()
    }

    fn fits(answer: &Answer<'_>) -> bool {
        O::fits(answer)
    }

    fn encode(&mut self, connection: &mut Connection) {
        self.outputs = Vec::with_capacity(self.operations.len());
        self.operations.iter_mut().for_each(|operation| operation.encode(connection));
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, ReplyFailure> {
        // The server has carried out the operations before the failed operation, and may carry out
        // the later operations. The failure of a batch is therefore definite only if the batch has
        // a single operation.
        let is_alone = self.operations.len() == 1;
        let unsure = |failure: ReplyFailure| ReplyFailure {
            is_definite: failure.is_definite && is_alone,
            ..failure
        };
        let Some(operation) = self.operations.get_mut(self.outputs.len()) else { return Ok(None) };
        self.outputs.extend(operation.take(reply).map_err(unsure)?);
        let is_whole = self.outputs.len() == self.operations.len();
        Ok(is_whole.then(|| std::mem::take(&mut self.outputs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::connection::Connection;
    use crate::core::key::Key;
    use crate::core::operation::Delete;

    fn batch() -> Batch<Delete<'static>> {
        let delete = |key: &'static str| {
            let key = Key::new(key.as_bytes()).unwrap();
            Delete { key, compare: None, stale: None }
        };
        Batch::new(["a", "b", "c"].map(delete).into())
    }

    #[test]
    fn outputs_are_in_the_order_of_the_operations() {
        let (mut connection, mut batch) = (Connection::default(), batch());
        batch.encode(&mut connection);
        assert_eq!(connection.output(), b"delete a\r\ndelete b\r\ndelete c\r\n");
        let mut outputs = None;
        for reply in ["DELETED\r\n", "NOT_FOUND\r\n", "DELETED\r\n"] {
            assert_eq!(outputs, None);
            outputs = batch.take(&Bytes::from_static(reply.as_bytes())).unwrap();
        }
        assert_eq!(outputs, Some(vec![true, false, true]));
    }

    #[test]
    fn a_failure_in_a_batch_is_ambiguous() {
        let (mut connection, mut batch) = (Connection::default(), batch());
        batch.encode(&mut connection);
        batch.take(&Bytes::from_static(b"DELETED\r\n")).unwrap();
        let full = Bytes::from_static(b"SERVER_ERROR out of memory\r\n");
        assert!(!batch.take(&full).unwrap_err().is_definite);
    }
}
