// The callbacks of an object that may be destroyed before they run.
#ifndef CKPTD_STORAGE_BASE_CALLBACK_SCOPE_H_
#define CKPTD_STORAGE_BASE_CALLBACK_SCOPE_H_

#include <memory>
#include <utility>

namespace ckptd {

// A member of that object, after all members that the callbacks use. Not thread-safe: the callbacks run on
// the thread that destroys the object.
class CallbackScope {
 public:
  CallbackScope() = default;
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  // Calls `callback`, which returns nothing, and does nothing once the scope has ended.
  template <typename Callback>
  auto Guard(Callback callback) const {
    return [scope = std::weak_ptr<const bool>(scope_),
            callback = std::move(callback)](auto&&... arguments) mutable {
      if (!scope.expired()) callback(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // Ends it before the destructor does.
  void End() { scope_ = nullptr; }
  bool ended() const { return scope_ == nullptr; }

  // For a function of the object that makes a call within which the object may be destroyed.
  class Observer {
   public:
    explicit Observer(const CallbackScope& scope) : scope_(scope.scope_) {}
    bool ended() const { return scope_.expired(); }

   private:
    std::weak_ptr<const bool> scope_;
  };

 private:
  std::shared_ptr<const bool> scope_ = std::make_shared<const bool>(true);
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_CALLBACK_SCOPE_H_
