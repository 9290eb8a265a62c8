// Threads that share the phases of a step. No thread is needed: whoever comes takes the next piece of work, and a
// phase is over when its pieces are done, so that a core that the system gave to somebody else holds nobody up for
// longer than the piece it had begun. Which thread runs a piece changes no bit of its result.
#pragma once
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace loopwright {

class Team {
   public:
    explicit Team(int num_threads) : num_threads_(num_threads) {
        for (int i = 1; i < num_threads; i++) helpers_.emplace_back([this, i] { help(i); });
    }

    ~Team() {
        is_closing_ = true;
        call_.fetch_add(1);
        wake();
        for (auto& helper : helpers_) helper.join();
    }

    int num_threads() const { return num_threads_; }

    // Runs `work(thread, phases)` on every thread and returns when all have left it. The work must call
    // `phases.run` for the same phases in the same order on every thread.
    template <class Work>
    void run(int num_phases, Work work) {
        if ((int)pieces_.size() < num_phases) pieces_ = std::vector<Phase>(num_phases);
        for (int i = 0; i < num_phases; i++) pieces_[i].taken = pieces_[i].done = 0;
        job_ = [](void* context, Team& team, int thread) {
            Phases phases{team, 0};
            (*(Work*)context)(thread, phases);
        };
        context_ = &work;
        inside_.store(0, std::memory_order_release);
        call_.fetch_add(1);
        wake();
        job_(context_, *this, 0);
        for (int spins = 0, none = 0; !inside_.compare_exchange_weak(none, kClosed); none = 0) rest(spins);
    }

    struct Phases {
        Team& team;
        int number;

        // Calls `piece(i)` once for each i below `count`, on whichever thread is free; returns when all are done.
        template <class Piece>
        void run(int count, Piece piece) {
            Phase& phase = team.pieces_[number++];
            int mine = 0;
            for (int i; (i = phase.taken.fetch_add(1, std::memory_order_relaxed)) < count; mine++) piece(i);
            if (mine) phase.done.fetch_add(mine, std::memory_order_acq_rel);
            for (int spins = 0; phase.done.load(std::memory_order_acquire) < count;) rest(spins);
        }
    };

   private:
    struct alignas(64) Phase {
        std::atomic<int> taken{0};
        std::atomic<int> done{0};
    };

    static void rest(int& spins) {
        if (++spins < 2000)
            __builtin_ia32_pause();
        else
            sched_yield();
    }

    void wake() { syscall(SYS_futex, &call_, FUTEX_WAKE_PRIVATE, num_threads_, nullptr, nullptr, 0); }

    void help(int thread) {
        for (int seen = 0;;) {
            while (call_.load(std::memory_order_acquire) == seen)
                syscall(SYS_futex, &call_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
            seen = call_.load(std::memory_order_acquire);
            if (is_closing_) return;
            if (!enter()) continue;  // the others have finished without this thread
            job_(context_, *this, thread);
            inside_.fetch_sub(1, std::memory_order_acq_rel);
        }
    }

    bool enter() {
        int inside = inside_.load(std::memory_order_acquire);
        while (inside != kClosed)
            if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) return true;
        return false;
    }

    static constexpr int kClosed = -1;

    int num_threads_;
    std::vector<std::thread> helpers_;
    std::vector<Phase> pieces_;
    void (*job_)(void*, Team&, int) = nullptr;
    void* context_ = nullptr;
    std::atomic<int> call_{0};
    std::atomic<int> inside_{kClosed};  // helpers at work, or kClosed between two runs
    std::atomic<bool> is_closing_{false};
};

}  // namespace loopwright
