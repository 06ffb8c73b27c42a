//! Makes missing values, in a thread or in a task.

use crate::cache::Cache;
use crate::insert::Insertion;
use crate::makers::{self, JoinOutcome, MakerGuard};
use bytes::Bytes;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;

impl Cache {
    /// Returns the value under `key`. If there is none, calls `make`, and stores and returns the
    /// value that it makes.
    ///
    /// ```
    /// # fn main() -> Result<(), larder_cache::BuildError> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::InsertOptions;
    /// use std::time::Duration;
    ///
    /// let page = cache.get_or_insert_with("page", || "made once");
    /// assert_eq!(page, "made once");
    ///
    /// // A maker may return options for its value.
    /// let minute = InsertOptions::new().ttl(Duration::from_secs(60));
    /// cache.get_or_insert_with("quote", || (vec![4, 2], minute));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If several threads request the same missing value, only one of them calls its maker
    /// (`make`), and the others wait for the value. If the maker panics, one of the waiting threads
    /// calls its own maker. A maker may use this cache and others. If the thread that makes the
    /// value waits for the calling thread, waiting would cause a deadlock, so the call runs its own
    /// `make`. If the value can't be stored, for example because it is too large, the call returns
    /// it without storing it.
    pub fn get_or_insert_with<M: Into<Insertion>>(
        &self,
        key: impl AsRef<[u8]>,
        make: impl FnOnce() -> M,
    ) -> Bytes {
        let made = self.try_get_or_insert_with(key, || Ok::<_, Infallible>(make()));
        made.unwrap_or_else(|error| match error {})
    }

    /// Does the same as [`Cache::get_or_insert_with`], for makers that may fail.
    ///
    /// # Errors
    /// The error of this call's own `make`. Waiting calls do not receive this error: one of these
    /// calls runs its own maker.
    pub fn try_get_or_insert_with<M: Into<Insertion>, E>(
        &self,
        key: impl AsRef<[u8]>,
        make: impl FnOnce() -> Result<M, E>,
    ) -> Result<Bytes, E> {
        let key = key.as_ref();
        match self.get(key) {
            Some(value) => Ok(value),
            None => self.try_insert_missing(key, make),
        }
    }

    /// Returns the value under `key`. If there is none, awaits `make`, and stores and returns the
    /// value that it makes. Works with any executor.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// # async fn render() -> String { "<html>".into() }
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// use larder_cache::InsertOptions;
    /// use std::time::Duration;
    ///
    /// let page = cache.get_or_insert_async("page", async {
    ///     (render().await, InsertOptions::new().ttl(Duration::from_secs(60)))
    /// });
    /// assert_eq!(page.await, "<html>");
    /// # });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Of the threads and tasks that request the same missing value, by this method or by
    /// [`Cache::get_or_insert_with`], only one runs its maker (`make`). Tasks wait for the value
    /// without blocking their thread. If the maker panics, or if the future of its call is dropped,
    /// one of the waiting calls runs its own maker. `make` is not polled if there is a value.
    ///
    /// A maker may use this cache and others. If the maker of the value depends on this call,
    /// waiting would cause a deadlock, so the call awaits its own `make`. The cache detects a
    /// dependency if the maker's own future polls this call, at any depth, or if makers wait for
    /// each other. The cache cannot detect the following dependencies, which make the calls wait
    /// forever:
    ///
    /// - The maker waits for another task or thread, which requests the same key.
    /// - A task calls [`Cache::get_or_insert_with`] while the maker is a task of the same thread:
    ///   the blocked thread cannot poll the maker. Tasks should use only the asynchronous methods.
    /// - A task polls a call, keeps its future without polling it (for example after `select!`),
    ///   and requests the same key again. Drop the first future before the second request.
    /// - The destructor of a maker's future requests the same key.
    pub async fn get_or_insert_async<M: Into<Insertion>>(
        &self,
        key: impl AsRef<[u8]>,
        make: impl Future<Output = M>,
    ) -> Bytes {
        let make = async { Ok::<_, Infallible>(make.await) };
        let made = self.try_get_or_insert_async(key, make).await;
        made.unwrap_or_else(|error| match error {})
    }

    /// Does the same as [`Cache::get_or_insert_async`], for makers that may fail.
    ///
    /// # Errors
    /// The error of this call's own `make`. Waiting calls do not receive this error: one of these
    /// calls runs its own maker.
    pub async fn try_get_or_insert_async<M: Into<Insertion>, E>(
        &self,
        key: impl AsRef<[u8]>,
        make: impl Future<Output = Result<M, E>>,
    ) -> Result<Bytes, E> {
        let key = key.as_ref();
        match self.get(key) {
            Some(value) => Ok(value),
            None => self.try_insert_missing_async(key, make).await,
        }
    }

    /// Does the same as [`Cache::try_get_or_insert_with`], after a lookup of the key has found no
    /// value.
    pub(crate) fn try_insert_missing<M: Into<Insertion>, E>(
        &self,
        key: &[u8],
        make: impl FnOnce() -> Result<M, E>,
    ) -> Result<Bytes, E> {
        let maker = loop {
            match makers::join(self.core.id, key) {
                JoinOutcome::Maker(maker) => break maker,
                JoinOutcome::Value(value) => return Ok(value),
                JoinOutcome::Failed => (),
            }
        };
        // Another maker may have stored a value since the lookup.
        let value = match self.peek(key) {
            Some(value) => value,
            None => {
                let made = maker.run(|| make().map(Into::into))?;
                self.insert_made(&maker, key, made)
            }
        };
        maker.finish(&value);
        Ok(value)
    }

    /// Does the same as [`Cache::try_get_or_insert_async`], after a lookup of the key has found no
    /// value. Polls `make` until it is ready, or does not poll it at all.
    pub(crate) async fn try_insert_missing_async<M: Into<Insertion>, E>(
        &self,
        key: &[u8],
        make: impl Future<Output = Result<M, E>>,
    ) -> Result<Bytes, E> {
        let maker = loop {
            match makers::join_in_task(self.core.id, key).await {
                JoinOutcome::Maker(maker) => break maker,
                JoinOutcome::Value(value) => return Ok(value),
                JoinOutcome::Failed => (),
            }
        };
        // Another maker may have stored a value since the lookup.
        let value = match self.peek(key) {
            Some(value) => value,
            None => {
                let mut make = pin!(make);
                let made =
                    poll_fn(|cx| maker.run(|| make.as_mut().poll(cx).map_ok(Into::into))).await?;
                self.insert_made(&maker, key, made)
            }
        };
        maker.finish(&value);
        Ok(value)
    }

    /// Stores a value. Returns the value, even if the insert fails.
    fn insert_made(&self, maker: &MakerGuard, key: &[u8], made: Insertion) -> Bytes {
        let Insertion { value, options } = made;
        // Insert within `run`: the insert may call a listener for evictions, and the listener may
        // request the same key.
        let _ = maker.run(|| self.insert_with(key, &value, options));
        value
    }
}
