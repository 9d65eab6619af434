// Stands for the header of that name, of which OpSparse takes this much to check results that it does not ask for.
#pragma once

enum cusparseStatus_t { CUSPARSE_STATUS_SUCCESS };
