// Leaves secrets out of text that is meant for other people.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_REDACT_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_REDACT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ckptd::ctl {

inline constexpr char kLeftOut[] = "(left out)";

// Whether what has this name is a secret: AWS_SECRET_ACCESS_KEY, etcd_password, token. A name that ends with
// _file or _uri is the place of a secret, and is none itself.
bool NamesSecret(absl::string_view name);

// Two ways, because neither is enough alone: values that are known to be secret are left out wherever they are,
// and so is what looks like a secret by its name or its place.
class Redactor {
 public:
  // From now on the value is left out. Values of fewer than 4 characters are not taken: they would be found in
  // ordinary words.
  void Add(absl::string_view secret);
  // Takes the values of variables ("NAME=value") whose names say that they are secrets.
  void AddEnvironment(const std::vector<std::string>& variables);
  // Takes the values of lines "name = value" whose names say that they are secrets: a file of AWS credentials.
  void AddSettings(absl::string_view text);

  // Without known secrets; private keys (PEM); user and password of URLs; the value after a secret's name and
  // "=" or ":"; and what follows "Bearer" and "Basic".
  std::string Clean(absl::string_view text) const;

 private:
  std::vector<std::string> secrets_;  // Longest first: one may be a part of another.
};

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_REDACT_H_
